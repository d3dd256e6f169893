"""What the first run of a policy would do, in one line, as soon as the policy is declared."""

from __future__ import annotations

from time import monotonic

from sqlalchemy import Connection

from lapse.app.preview import Outlook, follow, outlook
from lapse.catalog import Catalog, policies
from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import Expiring
from lapse.model.job import Path, PathKind
from lapse.model.policy import PAUSED_BY_POLICY, Policy
from lapse.model.table import TableName
from lapse.runner.events import NullListener
from lapse.runner.guard import blocker_of
from lapse.runner.jobs import JobKeeper

MOST_SECONDS, FOLLOW_SECONDS = 2.0, 0.5
"""How long a declaration may be held up by a look at what it means, and at the foreign keys of one physical table."""


class FirstRun:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._engine = catalog.engine

    def notices(self, table: TableName, before: Policy | None) -> tuple[str, ...]:
        """One line, or none: where the rows that expire are still the same, the table is empty, or a look at it fails
        or takes too long. A declaration never fails for the sake of this line."""
        try:
            with self._catalog.reading() as connection:
                stored = policies.find_policy(connection, table)
                if stored is None or (before is not None and stored.policy.same_expiry(before)):
                    return ()
                line = self._line(connection, stored)
        except Exception:
            return ()
        return () if line is None else (line,)

    def _line(self, connection: Connection, stored: StoredPolicy) -> str | None:
        found = self._look(connection, stored)
        if found is None:
            return None
        outlook_, blocker = found
        if not outlook_.rows:
            return None
        words = [f"{stored.table}: {outlook_} at the first run"]
        if outlook_.held:
            one = outlook_.held == 1
            words.append(
                f"{outlook_.held:,} more {'has' if one else 'have'} expired and {'stays' if one else 'stay'}, because"
                f" other rows refer to {'it' if one else 'them'}"
            )
        if blocker is not None and stored.policy.guard:
            words.append("that run waits for confirmation")
        if stored.policy.pause:
            words.append(PAUSED_BY_POLICY)
        elif stored.grace_until is not None:
            words.append(f"workers wait until {stored.grace_until:%H:%M} UTC (ttl_grace)")
        return "; ".join(words)

    def _look(self, connection: Connection, stored: StoredPolicy) -> tuple[Outlook, str | None] | None:
        until = monotonic() + MOST_SECONDS
        now = self._engine.now(connection)
        # One of its own, so that what it remembers of the table ends with this look.
        keeper = JobKeeper(self._catalog, "frontend", NullListener())
        surveys, consequences = [], []
        found: list[Expiring] = []
        for part in policies.list_tables(connection, stored.id):
            left = until - monotonic()
            if left <= 0:
                return None
            with self._engine.limited(connection, left):
                declared = keeper.declared(connection, stored, part.name_in(stored.table))
                found.append(self._engine.expiring(connection, declared, [now], exact=False))
            surveys.append(found[-1].as_survey())
            path = Path(kind=PathKind.PHYSICAL, evidence="")
            target = self._engine.target(connection, declared, now, path=path)
            consequences.append(follow(self._engine, connection, target, surveys[-1].expired, FOLLOW_SECONDS))
        return outlook(surveys, consequences), blocker_of(found, now)
