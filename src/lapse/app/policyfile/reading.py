"""Reads `lapse.toml`; every problem is told with file, line and column."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lapse.app.policyfile.positions import KeyPath, Positions
from lapse.app.textfile import read_text
from lapse.ddl import parse_expression, recognise_column
from lapse.errors import FileProblem, LapseError, UsageError
from lapse.model import interval, parameters
from lapse.model.policy import Policy, PolicyChange
from lapse.model.secret import HIDDEN, mask
from lapse.model.suggestion import suggest

FILE_NAME = "lapse.toml"
COLUMN, AFTER, EXCLUDE = "column", "after", "exclude"
SECTIONS = ("defaults", "environments", "databases", "tables")
ENVIRONMENT_KEYS = ("url", "defaults", "tables")
DATABASE_KEYS = ("url", "query", "hosts", "defaults", "tables")
DERIVED_PARAMETERS = ("ttl",)
"""Parameters that a file has no use for: a table in it has TTL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableEntry:
    """What the file says about a table: a policy, or with `exclude` why it has none.

    `keeps_pause` is True where the file leaves pausing to the operators.
    """

    name: str
    policy: Policy | None
    exclude: str | None
    keeps_pause: bool
    place: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyFile:
    """One environment of a file, or one of its databases, defaults and overrides applied."""

    path: Path
    environment: str | None
    url: str | None
    tables: tuple[TableEntry, ...]
    has_databases: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseEntry:
    """One of the `[databases.NAME]` of a file, with its policies.

    With `query`, the database at `url` is asked for the names of others; those on another host than its own must be
    among `hosts`.
    """

    name: str
    url: str
    policies: PolicyFile
    query: str | None = None
    hosts: tuple[str, ...] = ()


def read_databases(path: Path, variables: Mapping[str, str] | None = None) -> tuple[DatabaseEntry, ...]:
    """Every database that a file names. Raises FileProblem."""
    return _Reader(path, os.environ if variables is None else variables, needs_url=True).databases()


def read_file(
    path: Path,
    environment: str | None = None,
    variables: Mapping[str, str] | None = None,
    *,
    needs_url: bool = True,
) -> PolicyFile:
    """Raises FileProblem. Without `environment`, the file's only one is taken, or none if it has several.

    Unless it `needs_url`, a variable that is to hold the URL may be unset.
    """
    return _Reader(path, os.environ if variables is None else variables, needs_url=needs_url).read(environment)


class _Reader:
    def __init__(self, path: Path, variables: Mapping[str, str], *, needs_url: bool) -> None:
        self._path = path
        self._needs_url = needs_url
        self._variables = variables
        text = read_text(path, missing="`lapse init` writes a first one; -f names another")
        try:
            self._document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _syntax(path, error, text) from None
        self._positions = Positions(text)

    def read(self, wanted: str | None) -> PolicyFile:
        environments = self._environments()
        if wanted is None and len(environments) == 1:
            wanted = next(iter(environments))
        if wanted is not None and wanted not in environments:
            known = f"the file has {', '.join(environments)}" if environments else "the file has none"
            hint = suggest(wanted, environments, otherwise=known)
            raise self._problem(("environments",), f"there is no environment {wanted!r}", hint=hint)
        here: KeyPath = ("environments", wanted) if wanted is not None else ()
        for name in environments:
            self._known_keys(("environments", name), self._section(("environments", name)), ENVIRONMENT_KEYS)
        return self._policies(here, wanted, self._url(here) if wanted is not None else None)

    def _environments(self) -> dict[str, Any]:
        self._known_keys((), self._document, SECTIONS)
        environments, databases = self._section(("environments",)), self._section(("databases",))
        if environments and databases:
            hint = "give each database of each environment a [databases.NAME] of its own, or a file of its own"
            raise self._problem(("databases",), "a file has environments or databases, not both", hint=hint)
        for name in databases:
            self._known_keys(("databases", name), self._section(("databases", name)), DATABASE_KEYS)
        return environments

    def databases(self) -> tuple[DatabaseEntry, ...]:
        self._environments()
        names = self._section(("databases",))
        if not names:
            hint = '[databases.orders] with url = "$ORDERS_URL" names one'
            raise self._problem(("databases",), "the file names no databases", hint=hint)
        return tuple(self._database(name) for name in names)

    def _database(self, name: str) -> DatabaseEntry:
        here: KeyPath = ("databases", name)
        if re.fullmatch(r"[\w.-]+", name) is None:
            raise self._problem(here, "the name of a database consists of letters, digits, _, - and dots")
        url, query, hosts = self._url(here), self._section(here).get("query"), self._section(here).get("hosts", [])
        if url is None:
            raise self._problem(here, f"database {name} has no url", hint='url = "$DATABASE_URL"')
        if query is not None and (not isinstance(query, str) or not query.strip()):
            raise self._problem((*here, "query"), "query must be a statement that gives names of databases")
        if not isinstance(hosts, list) or not all(isinstance(host, str) and host for host in hosts):
            raise self._problem((*here, "hosts"), 'hosts must be a list of names, such as ["db1.example.com"]')
        if hosts and query is None:
            raise self._problem((*here, "hosts"), "hosts belongs to a query, whose databases it says where to find")
        return DatabaseEntry(
            name=name, url=url, query=query, hosts=tuple(hosts), policies=self._policies(here, name, url)
        )

    def _policies(self, here: KeyPath, environment: str | None, url: str | None) -> PolicyFile:
        defaults = self._defaults(here)
        tables = tuple(self._table(name, here, defaults) for name in self._table_names(here))
        several = bool(self._section(("databases",)))
        return PolicyFile(path=self._path, environment=environment, url=url, tables=tables, has_databases=several)

    def _table_names(self, here: KeyPath) -> list[str]:
        own = self._section((*here, "tables")) if here else {}
        return list(dict.fromkeys((*self._section(("tables",)), *own)))

    def _table(self, name: str, here: KeyPath, defaults: dict[str, Any]) -> TableEntry:
        """Keys of the environment win over those of the table, and all win over defaults."""
        places: dict[str, KeyPath] = {}
        values: dict[str, Any] = {}
        layers: list[KeyPath] = [("tables", name), *([(*here, "tables", name)] if here else [])]
        for layer in layers:
            found = self._section(layer)
            self._known_keys(layer, found, (COLUMN, AFTER, EXCLUDE, *_allowed_parameters()))
            values = {key: value for key, value in values.items() if key not in _replaced_by(found)}
            values |= found
            places |= {key: (*layer, key) for key in found}
        place = next((layer for layer in reversed(layers) if self._section(layer)), layers[0])
        return self._entry(name, place, values, places, defaults)

    def _entry(
        self, name: str, place: KeyPath, values: dict[str, Any], places: dict[str, KeyPath], defaults: dict[str, Any]
    ) -> TableEntry:
        line, _ = self._positions.of(place)
        where = f"{self._path.name}:{line}"
        if EXCLUDE in values:
            reason = values[EXCLUDE]
            if not isinstance(reason, str) or not reason.strip():
                raise self._problem(places[EXCLUDE], "exclude must say why the table has no TTL")
            if len(values) > 1:
                raise self._problem(places[EXCLUDE], f"table {name} is excluded, so nothing else can be set")
            return TableEntry(name=name, policy=None, exclude=reason.strip(), keeps_pause=True, place=where)
        fields = dict(defaults)
        for key in values:
            fields |= self._fields(key, values, places)
        try:
            policy = PolicyChange(set=fields).apply_to(None, name)
        except LapseError as error:
            hint = f"set ttl_expire_after, ttl_expiration_expression, or {COLUMN} and {AFTER}; or {EXCLUDE} it"
            raise self._problem(place, error.message, hint=hint) from error
        return TableEntry(name=name, policy=policy, exclude=None, keeps_pause="pause" not in fields, place=where)

    def _fields(self, key: str, values: Mapping[str, Any], places: Mapping[str, KeyPath]) -> dict[str, Any]:
        place, text = places[key], _text(values[key])
        if text is None:
            raise self._problem(place, f"{key} must be a string, a number, true or false")
        try:
            if key == COLUMN:
                if AFTER not in values:
                    raise self._problem(
                        place,
                        f"{COLUMN} needs {AFTER}, such as '30 days'",
                        hint="a column that says itself when a row expires is ttl_expiration_expression",
                    )
                return {"column": text, "interval": interval.parse(_text(values[AFTER]) or "", name=AFTER)}
            if key == AFTER:
                if COLUMN not in values:
                    raise self._problem(place, f"{AFTER} needs {COLUMN}, the column with the time to count from")
                return {}
            return parameter_fields(key, text)
        except FileProblem:
            raise
        except LapseError as error:
            raise self._problem(places[AFTER] if key == COLUMN else place, error.message, hint=error.hint) from error

    def _defaults(self, here: KeyPath) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for layer in (("defaults",), *(((*here, "defaults"),) if here else ())):
            found = self._section(layer)
            allowed = [name for name in _allowed_parameters() if name not in _EXPIRY_KEYS]
            self._known_keys(layer, found, allowed)
            for key in found:
                fields |= self._fields(key, found, {key: (*layer, key) for key in found})
        return fields

    def _url(self, here: KeyPath) -> str | None:
        value = self._section(here).get("url")
        if value is None:
            return None
        place = (*here, "url")
        if not isinstance(value, str):
            raise self._problem(place, "url must be a string")
        shown = _VARIABLE.sub(HIDDEN, value)
        if mask(shown) != shown:
            hint = 'url = "$DATABASE_URL" takes it from the environment'
            raise self._problem(place, "a password does not belong in this file", hint=hint)
        missing = [name for name in _variables_in(value) if not self._variables.get(name)]
        if missing and not self._needs_url:
            return None
        if missing:
            raise self._problem(place, f"the environment variable {missing[0]} is not set")
        return self._with_variables(value.strip())

    def _with_variables(self, text: str) -> str:
        """Between `//` and `@` a value is a user's name or password, in which any character may stand for itself."""
        before, at, after = text.rpartition("@")
        quoted = _VARIABLE.sub(lambda found: quote(self._variables[found[1] or found[2]], safe=""), before)
        return quoted + at + _VARIABLE.sub(lambda found: self._variables[found[1] or found[2]], after)

    def _section(self, path: KeyPath) -> dict[str, Any]:
        found: Any = self._document
        for number, name in enumerate(path):
            found = found.get(name, {})
            if not isinstance(found, dict):
                raise self._problem(path[: number + 1], f"{name} must be a table of keys and values")
        return dict(found)

    def _known_keys(self, path: KeyPath, found: Mapping[str, Any], allowed: tuple[str, ...] | list[str]) -> None:
        for key in found:
            if key not in allowed:
                hint = suggest(key, allowed, otherwise=f"known: {', '.join(allowed)}")
                raise self._problem((*path, key), f"{key} is not known here", hint=hint)

    def _problem(self, place: KeyPath, text: str, *, hint: str | None = None) -> FileProblem:
        line, column = self._positions.of(place)
        return FileProblem(text, path=str(self._path), line=line, column=column, hint=hint)


_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def _variables_in(text: str) -> list[str]:
    return [found[1] or found[2] for found in _VARIABLE.finditer(text)]


_EXPIRY_KEYS = frozenset({COLUMN, AFTER, EXCLUDE, "ttl_expire_after", "ttl_expiration_expression"})


_ONE_WAY = (frozenset({COLUMN, AFTER}), frozenset({"ttl_expire_after"}), frozenset({"ttl_expiration_expression"}))


def _replaced_by(found: Mapping[str, Any]) -> frozenset[str]:
    """Keys of an earlier layer that these leave nothing of: another way to say when rows expire replaces the first."""
    if EXCLUDE in found:
        return frozenset((COLUMN, AFTER, *_allowed_parameters()))
    for way in _ONE_WAY:
        if found.keys() & way:
            return _EXPIRY_KEYS - way
    return frozenset()


def _allowed_parameters() -> list[str]:
    return [
        parameter.name
        for parameter in parameters.PARAMETERS.values()
        if parameter.field and parameter.name not in DERIVED_PARAMETERS
    ]


def parameter_fields(name: str, text: str) -> dict[str, Any]:
    """The fields of a Policy that one parameter sets."""
    parameter = parameters.find(name)
    value = parameter.parse(text, name)
    if parameter.field == "expression":
        column = recognise_column(parse_expression(value, columns=None))
        if column is not None:
            return {"column": column[0], "interval": column[1]}
    return {parameter.field: value} if parameter.field else {}


def file_keys(policy: Policy) -> dict[str, str]:
    """What a file says for a policy; rules of partitions have no words in it."""
    options = policy.options()
    keys: dict[str, str] = {}
    if "column" in options:
        keys |= {"column": options.pop("column"), "after": str(policy.interval)}
    options.pop("interval", None)
    options.pop("partitions", None)
    return keys | {_PARAMETER_NAMES[field]: str(text) for field, text in options.items()}


_PARAMETER_NAMES = {parameter.field: parameter.name for parameter in parameters.PARAMETERS.values() if parameter.field}


def entry_from_keys(name: str, keys: Mapping[str, Any], *, place: str) -> TableEntry:
    """The same keys given by a program instead of a file; raises UsageError or PolicyConflict."""
    unknown = [key for key in keys if key not in (COLUMN, AFTER, EXCLUDE, *_allowed_parameters())]
    if unknown:
        raise UsageError(f"{place}: {unknown[0]} is not known", hint=f"known: {', '.join(_allowed_parameters())}")
    if EXCLUDE in keys:
        return TableEntry(name=name, policy=None, exclude=str(keys[EXCLUDE]), keeps_pause=True, place=place)
    if (COLUMN in keys) != (AFTER in keys):
        raise UsageError(f"{place}: {COLUMN} and {AFTER} belong together")
    fields: dict[str, Any] = {}
    for key, value in keys.items():
        if key == COLUMN:
            fields |= {"column": str(value), "interval": interval.parse(str(keys[AFTER]), name=AFTER)}
        elif key != AFTER:
            fields |= parameter_fields(key, _text(value) or "")
    policy = PolicyChange(set=fields).apply_to(None, name)
    return TableEntry(name=name, policy=policy, exclude=None, keeps_pause="pause" not in fields, place=place)


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if isinstance(value, str | int | float) else None


def _syntax(path: Path, error: tomllib.TOMLDecodeError, text: str) -> FileProblem:
    message = str(error)
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if found is None:
        return FileProblem(message, path=str(path), line=1, column=1)
    line, column = (int(found[1]), int(found[2])) if found[1] else (text.count("\n") + 1, 1)
    hint = 'a text is written in quotes: column = "created_at"' if message.startswith("Invalid value") else None
    return FileProblem(message[: found.start()], path=str(path), line=line, column=column, hint=hint)
