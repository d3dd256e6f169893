"""Looking at the ledger: entries of a table or of all, in words, and whether the chain is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from lapse.catalog import Catalog, ledger
from lapse.ddl.names import parse_table_name
from lapse.errors import InvalidValue, LapseError, NotFound, TableNotFound
from lapse.model.ledger import ChainVerdict, EntryKind, Head, LedgerEntry
from lapse.model.table import TableName
from lapse.runner.ledger import seal


class LedgerReader:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._engine = catalog.engine

    def entries(self, table: str | None, *, limit: int, before: int | None = None) -> list[LedgerEntry]:
        """Newest first. Raises NotFound for a table of which nothing was ever recorded."""
        self.seal()
        with self._catalog.reading() as connection:
            name = None if table is None else self.table(table)
            return ledger.entries(connection, table=name, limit=limit, before=before)

    def verify(self, anchors: Sequence[Head] = ()) -> ChainVerdict:
        """`anchors` are heads that were noted earlier, outside of the database."""
        self.seal()
        with self._catalog.reading() as connection:
            return ledger.verify(connection, {each.sequence: each.hash for each in anchors})

    def head(self) -> Head | None:
        with self._catalog.reading() as connection:
            return ledger.head(connection)

    def seal(self) -> None:
        # A look does not depend on it, and the role may be one that only reads: what waits is shown as waiting.
        with suppress(LapseError):
            seal(self._catalog)

    def table(self, text: str) -> TableName:
        """A table that may be gone, by the names in the ledger."""
        wanted = parse_table_name(text, self._engine.dialect)
        with self._catalog.reading() as connection:
            with suppress(TableNotFound):
                wanted = self._engine.full_name(connection, wanted)
            known = ledger.tables(connection, wanted.name)
        if wanted in known:
            return wanted
        alike = [each for each in known if wanted.schema in (None, each.schema)]
        if len(alike) != 1:
            raise NotFound(f"the ledger has no entry about table {text}", hint="`lapse ledger URL` lists all entries")
        return alike[0]


def parse_head(text: str) -> Head:
    """As `lapse ledger` prints it: the number and the hash of the newest entry."""
    number, _, digest = text.partition(":")
    if not number.isdecimal() or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise InvalidValue("--head", text, "must be a number, a colon and a hash, as `lapse ledger --verify` prints it")
    return Head(sequence=int(number), hash=digest)


def who(entry: LedgerEntry) -> str:
    """The role of the database, where it has roles, and the user and host of the process."""
    place = f"{entry.user} at {entry.host} ({entry.program})"
    return place if entry.role is None else f"{entry.role}, {place}"


def summary(entry: LedgerEntry) -> str:
    """What an entry says, in a line."""
    tell = _WORDS.get(entry.kind, _nothing)
    try:
        return tell(entry.was, entry.became)
    except KeyError:
        return _nothing(entry.was, entry.became)


def _change(was: dict[str, Any], became: dict[str, Any]) -> str:
    if "job" in became:
        return f"job {became['job']}"
    before, after = was.get("policy", {}), became.get("policy", {})
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    parts = [f"{name}: {before.get(name, '-')} → {after.get(name, '-')}" for name in changed]
    return f"version {became.get('version')}" + (f", {', '.join(parts)}" if parts else "")


def _declared(was: dict[str, Any], became: dict[str, Any]) -> str:
    if "hold" in became:
        return _hold({}, became)
    if "setting" in became:
        return f"{became['setting']} = {became['value']}"
    values = ", ".join(f"{name}: {value}" for name, value in sorted(became.get("policy", {}).items()))
    return f"version {became.get('version')}, {values}"


def _hold(was: dict[str, Any], became: dict[str, Any]) -> str:
    found = became or was
    ends = f", until {found['until']}" if found.get("until") else ""
    why = f": {found['reason']}" if found.get("reason") else ""
    from_then = f" (policy version {found['policy_version']})" if found.get("policy_version") else ""
    return f"hold {found['hold']} of {found.get('where') or 'all rows'}{ends}{why}{from_then}"


def _run(was: dict[str, Any], became: dict[str, Any]) -> str:
    part = f" of partition {became['partition']}" if "partition" in became else ""
    text = f"job {became['job']}{part} {became['status']}: {became['deleted']} deleted"
    counts = [f"{became[name]} {name}" for name in ("held", "skipped") if became.get(name)]
    counts += [f"archived in {became['archive']}"] if "archive" in became else []
    counts += [f"keys recorded: {became['keys']['rows']}"] if "keys" in became else []
    return ", ".join([text, *counts]) + f", policy version {became['policy_version']}, cutoff {became['cutoff']}"


def _file(was: dict[str, Any], became: dict[str, Any]) -> str:
    return f"{became['rows']} rows of job {became['job']} in {became['archive']}/{became['file']}"


def _restored(was: dict[str, Any], became: dict[str, Any]) -> str:
    jobs = ", ".join(f"{rows} of job {job}" for job, rows in sorted(became["jobs"].items()))
    return f"rows from {became['archive']}: {jobs}"


def _setting(was: dict[str, Any], became: dict[str, Any]) -> str:
    before, after = ("the default" if each["value"] is None else each["value"] for each in (was, became))
    return f"{became['setting']}: {before} → {after}"


def _reason(was: dict[str, Any], became: dict[str, Any]) -> str:
    return str(became.get("reason") or became.get("by") or "")


def _nothing(was: dict[str, Any], became: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in sorted((became or was).items()))


_WORDS: dict[str, Callable[[dict[str, Any], dict[str, Any]], str]] = {
    EntryKind.DECLARED: _declared,
    EntryKind.FOUND: _declared,
    EntryKind.CHANGED: _change,
    EntryKind.PAUSED: _change,
    EntryKind.RESUMED: _change,
    EntryKind.CANCELLED: _change,
    EntryKind.REMOVED: _reason,
    EntryKind.HELD: _hold,
    EntryKind.RELEASED: _hold,
    EntryKind.RUN: _run,
    EntryKind.ARCHIVED: _file,
    EntryKind.ARCHIVE_REMOVED: _file,
    EntryKind.RESTORED: _restored,
    EntryKind.SETTING: _setting,
    EntryKind.GUARDED: _reason,
    EntryKind.CONFIRMED: _reason,
}
