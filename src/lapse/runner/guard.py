"""Holds the first run of a policy back when it looks like a mistake, until a person has confirmed it.

Looked at once for every new expiry. A policy that was let pass, or confirmed, is not asked about again, however many
rows expire later.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from lapse.catalog import Catalog, ledger, policies
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.engines.base import Expiring
from lapse.errors import Drift, Refused
from lapse.model.ledger import EntryKind
from lapse.runner.jobs import JobKeeper
from lapse.runner.retry import retried

SMALL_TABLE_ROWS = 10_000
"""Fewer rows than this are not worth a question."""
LARGE_SHARE = 0.5
"""A first run that deletes more than this share of a table is held."""
EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)
"""No row of today's applications is older: an earlier time is a unit or an epoch gone wrong."""
FAR_FUTURE = timedelta(days=100 * 365)
HELD = "waiting for confirmation"


class Guard:
    def __init__(self, catalog: Catalog, keeper: JobKeeper) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._keeper = keeper

    @retried
    def blocker(self, stored: StoredPolicy, parts: Sequence[PhysicalTable], *, some: bool = False) -> str | None:
        """Why this policy must not run yet; None when it may, which is remembered.

        `some` says that these are not all of its physical tables: no row of the others has expired.
        """
        if stored.cleared_at is not None or not stored.policy.guard:
            return None
        try:
            reason = self._objection(stored, parts, some=some)
        except (Drift, Refused):
            # The job itself fails for this reason and says so.
            return None
        with self._catalog.writing() as connection:
            now = self._engine.now(connection)
            policies.set_guard(connection, stored.id, cleared_at=None if reason else now, held=reason)
            if reason is None or stored.held is None:
                said = {"by": "guard"} if reason is None else {"reason": reason}
                kind = EntryKind.CONFIRMED if reason is None else EntryKind.GUARDED
                ledger.record(connection, kind, now=now, table=stored.table, after=said)
        return reason

    def _objection(self, stored: StoredPolicy, parts: Sequence[PhysicalTable], *, some: bool) -> str | None:
        with self._engine.connection() as connection:
            self._keeper.armed(connection, stored)
            now = self._engine.now(connection)
            found = [
                self._engine.expiring(
                    connection,
                    self._keeper.declared(connection, stored, part.name_in(stored.table)),
                    (now,),
                    exact=False,
                )
                for part in parts
            ]
            if some:
                found.append(self._others(connection, stored, found))
        blocker = blocker_of(found, now)
        return None if blocker is None else f"{HELD}: {blocker}"

    def _others(self, connection: Connection, stored: StoredPolicy, found: Sequence[Expiring]) -> Expiring:
        """Rows of the physical tables that were not looked at, by the engine's counters."""
        whole = self._engine.footprints(connection, [stored.table]).get(stored.table)
        rows = max(0, (whole.rows if whole and whole.rows else 0) - sum(each.rows for each in found))
        return Expiring(counts=(0,), rows=rows, bytes=None, oldest=None, exact=False, method="the engine's counters")


def blocker_of(found: Sequence[Expiring], now: datetime) -> str | None:
    """What is suspicious about the first run over these physical tables, together."""
    rows = sum(each.rows for each in found)
    expired = sum(each.counts[0] for each in found)
    if rows < SMALL_TABLE_ROWS:
        return None
    oldest = min((each.oldest for each in found if each.oldest is not None), default=None)
    if oldest is not None and oldest < EARLIEST:
        return f"the oldest row is from {oldest:%Y-%m-%d}, which is implausible"
    if oldest is not None and oldest > now + FAR_FUTURE:
        return f"the oldest row is from {oldest:%Y-%m-%d}, which is implausible"
    if expired > rows * LARGE_SHARE:
        about = "" if all(each.exact for each in found) else "about "
        return f"the first run would delete {about}{expired:,} of {rows:,} rows ({expired / rows:.0%})"
    return None
