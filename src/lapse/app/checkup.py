"""What holds for the whole database: clocks, comments that miss their aim, late tables, workers, blind spots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from lapse._version import __version__
from lapse.app.finding import Finding, Level
from lapse.app.status import TableStatus, table_statuses
from lapse.catalog import Catalog, settings, workers
from lapse.ddl import parse_comment_policy
from lapse.errors import LapseError
from lapse.runner.promise import Standing

CLOCK_TOLERANCE = timedelta(seconds=5)
"""Jobs go by the database's clock; people and logs by that of their own machine."""
_LOOKS_LIKE_TTL = re.compile(r"\bttl\w*\s*[:=]|\bttl\b|\bexpire(s|d)?\s+after\b|\bretention\b", re.IGNORECASE)
SERVER = "server"


def check_up(catalog: Catalog) -> Iterator[Finding]:
    engine = catalog.engine
    with catalog.reading() as connection:
        yield from _clocks(catalog, connection)
        yield from _comments(engine.comments(connection))
        statuses = table_statuses(connection, engine.now(connection), engine)
        yield from _lateness(statuses, bool(workers.list_workers(connection)))
        yield from _versions([row.version for row in workers.list_workers(connection)])
        if statuses:
            yield from _blind_spots(catalog, connection)


def _clocks(catalog: Catalog, connection: Connection) -> Iterator[Finding]:
    hold = settings.load_settings(connection).clock_hold
    if hold is not None:
        yield Finding(level=Level.PROBLEM, subject=SERVER, text=hold, fix="lapse resume URL --clock")
    ahead = catalog.engine.stopwatch(connection) - datetime.now(UTC)
    if abs(ahead) > CLOCK_TOLERANCE:
        way = "ahead of" if ahead > timedelta() else "behind"
        yield Finding(
            level=Level.ADVICE,
            subject=SERVER,
            text=f"the database's clock is {abs(ahead).total_seconds():.0f} s {way} this machine's; rows expire by it",
            fix="timedatectl set-ntp true, on whichever machine is wrong",
        )


def _comments(comments: Sequence[tuple[object, str]]) -> Iterator[Finding]:
    """A comment that declares something wrongly is a problem elsewhere; this one declares nothing at all."""
    for name, text in comments:
        try:
            silent = parse_comment_policy(text) is None
        except LapseError:
            continue
        if silent and _LOOKS_LIKE_TTL.search(text):
            yield Finding(
                level=Level.ADVICE,
                subject=str(name),
                text=f"the comment {text!r} looks like a policy but declares none",
                fix="a comment declares one with ttl_duration=<seconds>;ttl_col=<column>;",
            )


def _lateness(statuses: Sequence[TableStatus], has_workers: bool) -> Iterator[Finding]:
    for status in statuses:
        if status.promise.standing is Standing.LATE:
            idle = "" if has_workers else "; no worker is running"
            yield Finding(
                level=Level.PROBLEM,
                subject=str(status.table),
                text=f"late: {status.promise.reason or 'expired rows are still there'}{idle}",
                fix=f"lapse run URL --table {status.stored.table}" if has_workers else "lapse worker URL",
            )
        if status.state == "held":
            yield Finding(
                level=Level.PROBLEM,
                subject=str(status.table),
                text=str(status.reason),
                fix=f"lapse preview URL {status.stored.table}, then lapse resume URL {status.stored.table}",
            )


def _versions(found: Sequence[str]) -> Iterator[Finding]:
    others = sorted(set(found) - {__version__})
    if others:
        yield Finding(
            level=Level.ADVICE,
            subject="workers",
            text=f"workers of version {', '.join(others)} are running beside this {__version__}",
            fix="upgrade them all to the same version",
        )


def _blind_spots(catalog: Catalog, connection: Connection) -> Iterator[Finding]:
    """Signs of strain that this role cannot read, so that Lapse does not give way to them."""
    for gauge in catalog.engine.gauges(connection):
        if gauge.value is None and gauge.note is not None and gauge.note.startswith("GRANT"):
            yield Finding(
                level=Level.ADVICE,
                subject=SERVER,
                text=f"{gauge.name} cannot be read, so Lapse does not give way to it",
                fix=gauge.note,
            )
