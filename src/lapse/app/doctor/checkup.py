"""What holds for the whole database: clocks, comments that miss their aim, workers, blind spots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from lapse._version import __version__
from lapse.app.archiving import file_orphans, orphans
from lapse.app.doctor.finding import Finding, Level
from lapse.catalog import Catalog, ledger, policies, settings, workers
from lapse.ddl import parse_comment_policy
from lapse.engines.base import TableComment
from lapse.errors import LapseError

CLOCK_TOLERANCE = timedelta(seconds=5)
"""Jobs go by the database's clock; people and logs by that of their own machine."""
_LOOKS_LIKE_TTL = re.compile(r"\bttl\w*\s*[:=]|\bttl\b|\bexpire(s|d)?\s+after\b|\bretention\b", re.IGNORECASE)
SERVER = "server"
PRUNED_WITHIN = timedelta(days=1)


def check_up(catalog: Catalog) -> Iterator[Finding]:
    engine = catalog.engine
    with catalog.reading() as connection:
        yield from _clocks(catalog, connection)
        yield from _ledger(catalog, connection)
        if not catalog.has_client(connection):
            missing = engine.client_advice(connection)
            yield Finding(level=Level.ADVICE, subject=SERVER, text=missing.text, fix=missing.statement)
        yield from _comments(engine.comments(connection))
        yield from _versions([row.version for row in workers.list_workers(connection)])
        yield from _archives(catalog, connection)
        declared = policies.list_policies(connection)
        if declared:
            yield from _blind_spots(catalog, connection)
            for advice in engine.excess_privileges(connection):
                yield Finding(level=Level.ADVICE, subject=SERVER, text=advice.text, fix=advice.statement)
    yield from _files(catalog)


def _archives(catalog: Catalog, connection: Connection) -> Iterator[Finding]:
    for archive, table in orphans(catalog, connection):
        yield Finding(
            level=Level.ADVICE,
            subject=str(archive),
            text=f"an archive of table {table} that no policy names any more; its rows stay until they are removed",
            fix=f"lapse restore URL {table}, or DROP TABLE {archive}",
        )


def _files(catalog: Catalog) -> Iterator[Finding]:
    """What is left of a crash goes by itself with the next export; nothing else of an archive is ever removed here."""
    for each in file_orphans(catalog):
        yield Finding(
            level=Level.PROBLEM if each.is_loss else Level.ADVICE,
            subject=f"{each.destination}/{each.path}" if each.path else each.destination,
            text=each.problem,
            fix=each.fix,
        )


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


def _ledger(catalog: Catalog, connection: Connection) -> Iterator[Finding]:
    """Workers remove what is too old every round, if they may."""
    retention = settings.load_settings(connection).ledger_retention
    if retention is None:
        return
    before = retention.subtracted_from(catalog.engine.now(connection)) - PRUNED_WITHIN
    if ledger.has_older(connection, before):
        yield Finding(
            level=Level.ADVICE,
            subject="ledger",
            text=f"entries older than lapse_ledger_retention ({retention}) stay: workers may not remove them",
            fix="lapse run URL, as the owner of the catalog",
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
        if gauge.value is None and gauge.grant is not None:
            yield Finding(
                level=Level.ADVICE,
                subject=SERVER,
                text=f"{gauge.name} cannot be read, so Lapse does not give way to it",
                fix=gauge.grant,
            )
