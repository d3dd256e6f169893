"""The databases of a file: opened by name, those that a query lists included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from lapse.app import Lapse
from lapse.app.policyfile import DatabaseEntry, PolicyFile, read_databases
from lapse.app.receivers import Receiver
from lapse.errors import InvalidValue, LapseError, NotFound, Unsupported
from lapse.metrics import Metrics
from lapse.model.secret import mask
from lapse.model.suggestion import suggest
from lapse.runner.events import Listener
from lapse.runner.multi import Member, Source

MOST_LISTED = 10_000
"""A query that gives more databases than this is a mistake."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """One database. One that a query has listed is called `entry/database`."""

    name: str
    url: str
    policies: PolicyFile
    gate_sql: str | None = None

    def open(self) -> Lapse:
        """Raises LapseError where there is none."""
        return Lapse(self.url, must_exist=True, gate_sql=self.gate_sql)

    @property
    def server(self) -> str:
        """What it is down together with."""
        url = make_url(self.url)
        return f"{url.host}:{url.port}" if url.host else f"{url.drivername} {url.database}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Unlisted:
    """An entry whose databases cannot be told now."""

    name: str
    error: LapseError


class Databases:
    def __init__(self, entries: Sequence[DatabaseEntry], *, gate_sql: str | None = None) -> None:
        self.entries = tuple(entries)
        self._gate_sql = gate_sql

    @classmethod
    def read(cls, path: Path, *, gate_sql: str | None = None) -> Databases:
        """Raises FileProblem."""
        return cls(read_databases(path), gate_sql=gate_sql)

    def find(self, wanted: Sequence[str] = ()) -> Iterator[Named | Unlisted]:
        """Those with these names, or all. Raises NotFound before it looks at any if the file has no such name."""
        for name in wanted:
            known = [entry.name for entry in self.entries]
            entry = next((each for each in self.entries if each.name == name.split("/")[0]), None)
            if entry is None or ("/" in name and entry.query is None):
                hint = suggest(name, known, otherwise=f"the file has {', '.join(known)}")
                raise NotFound(f"there is no database {name!r} in the file", hint=hint)
        for entry in self.entries:
            if not wanted or any(name.split("/")[0] == entry.name for name in wanted):
                yield from self._of(entry, wanted)

    def _of(self, entry: DatabaseEntry, wanted: Sequence[str]) -> Iterator[Named | Unlisted]:
        try:
            found = self.listed(entry)
        except LapseError as error:
            yield Unlisted(name=entry.name, error=error)
            return
        whole = not wanted or entry.name in wanted
        yield from (each for each in found if whole or each.name in wanted)
        for name in wanted:
            if name.startswith(f"{entry.name}/") and name not in {each.name for each in found}:
                yield Unlisted(name=name, error=NotFound(f"the query of {entry.name} does not list it"))

    def listed(self, entry: DatabaseEntry) -> list[Named]:
        """The database of an entry, or those that its query gives now. Raises LapseError."""
        if entry.query is None:
            return [self._named(entry.name, entry.url, entry)]
        url = make_url(entry.url)
        if not url.host:
            hint = "give each file a [databases.NAME] of its own"
            raise Unsupported(f"database {entry.name}: a query can list databases of a server, not files", hint=hint)
        with Lapse(entry.url, must_exist=True) as database:
            rows = database.execute(entry.query).rows
        if len(rows) > MOST_LISTED:
            raise InvalidValue("query", entry.query, f"gives {len(rows):,} databases, more than {MOST_LISTED:,}")
        found: dict[str, Named] = {}
        for row in rows:
            name, host, port = _place(entry, row)
            other = url.set(database=name, host=host or url.host, port=port or url.port)
            found[name] = self._named(f"{entry.name}/{name}", other.render_as_string(hide_password=False), entry)
        return list(found.values())

    def _named(self, name: str, url: str, entry: DatabaseEntry) -> Named:
        return Named(name=name, url=url, policies=entry.policies, gate_sql=self._gate_sql)


def _place(entry: DatabaseEntry, row: Sequence[Any]) -> tuple[str, str | None, int | None]:
    """Name, host and port. A role that may write what the query reads must not redirect the password."""
    name, host, port = (*row, None, None)[:3]
    if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
        raise InvalidValue("query", entry.query, f"gives {name!r}, which is not the name of a database")
    own = make_url(entry.url).host
    if host is not None and host not in (own, *entry.hosts):
        hint = f"add it to hosts of [databases.{entry.name}] if the password may be sent there"
        raise InvalidValue("query", entry.query, f"gives the host {host!r}, which the file does not allow", hint=hint)
    if port is not None and host in (None, own) and int(port) != make_url(entry.url).port:
        raise InvalidValue("query", entry.query, f"gives the port {port!r} on the server's own host")
    return name, host, None if port is None else int(port)


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A database that this worker serves, open."""

    named: Named
    database: Lapse
    metrics: Metrics
    member: Member

    @property
    def name(self) -> str:
        return self.named.name


class Fleet:
    """The databases of a file that one worker serves: opened once, closed when they are listed no more."""

    def __init__(
        self, databases: Databases, listeners: Callable[[Metrics], Listener], receivers: Sequence[Receiver] = ()
    ) -> None:
        """`listeners` says who is told what jobs do, `receivers` are told what needs a person."""
        self._databases = databases
        self._receivers = receivers
        self._listeners = listeners
        self._served: dict[str, Served] = {}
        self._problems: dict[str, str] = {}
        # Those that need not ask begin at once.
        entries = sorted(databases.entries, key=lambda entry: entry.query is not None)
        self.sources: list[Source] = [partial(self._members, entry) for entry in entries]

    @property
    def served(self) -> list[Served]:
        return sorted(self._served.values(), key=lambda each: each.name)

    def find(self, name: str) -> Served | None:
        return self._served.get(name)

    @property
    def problems(self) -> dict[str, str]:
        """Entry → why its databases cannot be told, or opened."""
        return dict(sorted(self._problems.items()))

    def forget(self, member: Member) -> None:
        """It is listed no more, and nothing works for it any more."""
        served = self._served.get(member.name)
        if served is not None and served.member is member:
            del self._served[member.name]
            served.database.close()

    def close(self) -> None:
        for served in self._served.values():
            served.database.close()

    def _members(self, entry: DatabaseEntry) -> list[Member]:
        """Raises LapseError where that cannot be told now: then they stay as they are."""
        try:
            members = [self._member(named) for named in self._databases.listed(entry)]
        except LapseError as error:
            self._problems[entry.name] = mask(error.message, entry.url)
            raise
        self._problems.pop(entry.name, None)
        return members

    def _member(self, named: Named) -> Member:
        known = self._served.get(named.name)
        if known is not None and known.named == named:
            return known.member
        database = named.open()
        metrics = database.metrics()
        member = Member(
            name=named.name,
            server=named.server,
            worker=database.worker(self._listeners(metrics), receivers=self._receivers),
            idle=lambda: database.engine.idle_connections,
            release=database.engine.release,
        )
        self._served = {
            **self._served,
            named.name: Served(named=named, database=database, metrics=metrics, member=member),
        }
        return member
