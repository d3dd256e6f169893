"""Do the times in a table look like times? A unit gone wrong expires everything at once, or nothing ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy import Connection

from lapse.app.finding import Finding, Level
from lapse.engines.base import Declared, Engine
from lapse.runner.guard import EARLIEST, FAR_FUTURE


def implausible_times(engine: Engine, connection: Connection, declared: Declared) -> Iterator[Finding]:
    """Without a scan where the table is large."""
    now = engine.now(connection)
    subject = str(declared.table.name)
    found = [
        engine.expiring(connection, part, (now, now + FAR_FUTURE), exact=False)
        for part in _parts(engine, connection, declared)
    ]
    rows = sum(each.rows for each in found)
    oldest = min((each.oldest for each in found if each.oldest is not None), default=None)
    if oldest is not None and oldest < EARLIEST:
        yield Finding(
            level=Level.ADVICE,
            subject=subject,
            text=f"the oldest time is {oldest:%Y-%m-%d}: a zero, or seconds where milliseconds are meant?",
            fix=f"lapse preview URL {subject}, and SET (ttl_time_format = …) where numbers are read wrongly",
        )
    if rows and not any(each.counts[1] for each in found):
        yield Finding(
            level=Level.ADVICE,
            subject=subject,
            text="no row will ever expire: every time is NULL, or more than a hundred years ahead",
            fix=f"lapse preview URL {subject}",
        )


def _parts(engine: Engine, connection: Connection, declared: Declared) -> Iterator[Declared]:
    for leaf in engine.leaves(connection, declared.table):
        name = leaf.name.partition
        policy = declared.policy if name is None else declared.policy.for_partition(name)
        yield replace(declared, table=leaf, policy=policy)
