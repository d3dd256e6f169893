"""Who exports the rows of an outbox, and how that went last: one fact for each outbox.

An exporter has a lease, so that two do not write the same rows; one that falls silent is followed by another. The
lease saves work and protects nothing: files are recorded in the transaction that removes their rows.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from sqlalchemy import Connection, delete, select

from lapse.catalog import meta
from lapse.catalog.schema import meta as facts

LEASE_SECONDS = 30.0
NOTED_SECONDS = 5.0
"""How often the number of rows that wait is written down, while it changes."""
_PREFIX = "export:"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportState:
    """`owner` exports until `until`, unless it renews that. `problem` is what the last export met, with the `hint` and
    the time when that began; `exported_at` is when a file was last published, `waiting` how many rows there were then,
    or are now, within `NOTED_SECONDS`."""

    outbox: str
    owner: str | None = None
    until: datetime | None = None
    problem: str | None = None
    hint: str | None = None
    since: datetime | None = None
    exported_at: datetime | None = None
    waiting: int = 0

    def is_taken(self, now: datetime, *, but: str) -> bool:
        return self.owner not in (None, but) and self.until is not None and now < self.until


def read(connection: Connection, outbox: str) -> ExportState:
    text = meta.read_fact(connection, _name(outbox))
    return ExportState(outbox=outbox) if text is None else _read(text)


def read_all(connection: Connection) -> dict[str, ExportState]:
    """By outbox."""
    found = connection.execute(select(facts.c.value).where(facts.c.name.like(f"{_PREFIX}%"))).scalars()
    return {state.outbox: state for state in map(_read, found)}


def take(connection: Connection, outbox: str, owner: str, now: datetime) -> bool:
    """Take or renew the lease; False where another has it."""
    before = meta.read_fact(connection, _name(outbox))
    known = ExportState(outbox=outbox) if before is None else _read(before)
    if known.is_taken(now, but=owner):
        return False
    mine = replace(known, owner=owner, until=now + timedelta(seconds=LEASE_SECONDS))
    return meta.replace_fact(connection, _name(outbox), before, _written(mine))


def note_waiting(connection: Connection, outbox: str, waiting: int) -> None:
    """For those who look; the holder of the lease says more."""
    before = meta.read_fact(connection, _name(outbox))
    known = ExportState(outbox=outbox) if before is None else _read(before)
    if known.waiting != waiting:
        meta.replace_fact(connection, _name(outbox), before, _written(replace(known, waiting=waiting)))


def release(
    connection: Connection,
    outbox: str,
    owner: str,
    *,
    now: datetime,
    problem: str | None = None,
    hint: str | None = None,
    exported: bool = False,
    waiting: int = 0,
) -> None:
    """Give the lease back, and say how it went. What another has taken meanwhile stays as it is."""
    before = meta.read_fact(connection, _name(outbox))
    if before is None or (known := _read(before)).owner != owner:
        return
    since = None if problem is None else known.since or now
    ended = replace(known, owner=None, until=None, problem=problem, hint=hint, since=since, waiting=waiting)
    meta.replace_fact(
        connection, _name(outbox), before, _written(replace(ended, exported_at=now) if exported else ended)
    )


def give_back(connection: Connection, outbox: str, owner: str) -> None:
    """The lease alone: nothing was found out about the destination."""
    before = meta.read_fact(connection, _name(outbox))
    if before is not None and (known := _read(before)).owner == owner:
        meta.replace_fact(connection, _name(outbox), before, _written(replace(known, owner=None, until=None)))


def forget(connection: Connection, outbox: str) -> None:
    connection.execute(delete(facts).where(facts.c.name == _name(outbox)))


def _name(outbox: str) -> str:
    return _PREFIX + sha256(outbox.encode()).hexdigest()[:48]


def _written(state: ExportState) -> str:
    found = {name: _iso(value) for name, value in asdict(state).items() if value is not None}
    return json.dumps(found, sort_keys=True)


def _iso(value: object) -> object:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _read(text: str) -> ExportState:
    found = json.loads(text)
    times = {name: datetime.fromisoformat(found[name]) for name in ("until", "since", "exported_at") if name in found}
    return ExportState(**{**found, **times})
