"""What holds for the whole database: clocks, comments that miss their aim, workers, blind spots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from lapse._version import __version__
from lapse.app.doctor.finding import Finding, Level
from lapse.catalog import Catalog, policies, settings, workers
from lapse.ddl import parse_comment_policy
from lapse.engines.base import TableComment
from lapse.errors import LapseError

CLOCK_TOLERANCE = timedelta(seconds=5)
"""Jobs go by the database's clock; people and logs by that of their own machine."""
_LOOKS_LIKE_TTL = re.compile(r"\bttl\w*\s*[:=]|\bttl\b|\bexpire(s|d)?\s+after\b|\bretention\b", re.IGNORECASE)
SERVER = "server"


def check_up(catalog: Catalog) -> Iterator[Finding]:
    engine = catalog.engine
    with catalog.reading() as connection:
        yield from _clocks(catalog, connection)
        yield from _comments(engine.comments(connection))
        yield from _versions([row.version for row in workers.list_workers(connection)])
        declared = {stored.table for stored in policies.list_policies(connection)}
        for table, advice in engine.undeclared(connection, declared).items():
            yield Finding(level=Level.ADVICE, subject=str(table), text=advice.text, fix=advice.statement)
        if declared:
            yield from _blind_spots(catalog, connection)
            for advice in engine.excess_privileges(connection):
                yield Finding(level=Level.ADVICE, subject=SERVER, text=advice.text, fix=advice.statement)


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


def _comments(comments: Sequence[TableComment]) -> Iterator[Finding]:
    """A comment that declares something wrongly is a problem elsewhere; this one declares nothing at all."""
    for comment in comments:
        try:
            silent = comment.native is None and parse_comment_policy(comment.text) is None
        except LapseError:
            continue
        if silent and _LOOKS_LIKE_TTL.search(comment.text):
            yield Finding(
                level=Level.ADVICE,
                subject=str(comment.table),
                text=f"the comment {comment.text!r} looks like a policy but declares none",
                fix="a comment declares one with ttl_duration=<seconds>;ttl_col=<column>; and nothing but such items",
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
    for gauge in catalog.engine.gauges(connection, settings.load_settings(connection)):
        if gauge.value is None and gauge.note is not None and gauge.note.startswith("GRANT"):
            yield Finding(
                level=Level.ADVICE,
                subject=SERVER,
                text=f"{gauge.name} cannot be read, so Lapse does not give way to it",
                fix=gauge.note,
            )
