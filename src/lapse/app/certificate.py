"""What a certificate states: what was promised in a time, what was deleted and held, and what is left now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection

from lapse._version import __version__
from lapse.app.ledger import LedgerReader
from lapse.catalog import Catalog, ledger, policies
from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import BoundPolicy
from lapse.errors import InvalidValue, Refused, UsageError
from lapse.model.actor import current_actor
from lapse.model.ledger import ChainVerdict, EntryKind, LedgerEntry, written_at
from lapse.model.table import TableName
from lapse.runner.jobs import JobKeeper

Record = dict[str, Any]
_POLICY_KINDS = (EntryKind.FOUND, EntryKind.DECLARED, EntryKind.CHANGED, EntryKind.PAUSED, EntryKind.RESUMED)


class Certifier:
    def __init__(self, catalog: Catalog, keeper: JobKeeper) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._keeper = keeper
        self._reader = LedgerReader(catalog)

    def statement(self, table: str | None, *, since: datetime, until: datetime) -> Record:
        """Raises Refused for a time without records, and for a ledger that was tampered with."""
        verdict = self._reader.verify()
        if not verdict.holds:
            raise Refused(f"the ledger was tampered with: {verdict.broken}", hint="lapse ledger URL --verify")
        self._keeper.look_again()
        with self._catalog.reading() as connection:
            now = self._engine.now(connection)
            _check_time(since, until, now)
            wanted = None if table is None else self._reader.table(table)
            found = ledger.entries(connection, table=wanted, until=until, runs_since=since)[::-1]
            self._require_records(connection, wanted, found, since)
            stored = {each.table: each for each in policies.list_policies(connection)}
            names = [wanted] if wanted is not None else _tables(found)
            tables = [self._table(connection, name, found, stored.get(name), since, until, now) for name in names]
            role = self._engine.role(connection)
        return {
            "lapse": __version__,
            "database": self._engine.database.url.render_as_string(hide_password=True),
            "engine": self._engine.name,
            "made_at": written_at(now),
            "made_by": {"role": role, **asdict(current_actor())},
            "from": written_at(since),
            "to": written_at(until),
            "ledger": _ledger(verdict),
            "tables": tables,
            "kept": all(each["now"] is None or not each["now"]["overdue"] for each in tables),
        }

    def _require_records(
        self, connection: Connection, table: TableName | None, found: Sequence[LedgerEntry], since: datetime
    ) -> None:
        """All that time the ledger must have been there, and in it the table."""
        first, own = ledger.oldest(connection), ledger.oldest(connection, table)
        assert first is not None and own is not None
        if found and first.at <= written_at(since):
            return
        begins = own.at if not found else first.at
        newest = ledger.entries(connection, table=table, limit=1)[0].at
        about = "" if table is None else f" about table {table}"
        raise Refused(
            f"the ledger has no records{about} of all that time: it has them from {begins} to {newest}",
            hint=f"--from {begins}, or later",
        )

    def _table(
        self,
        connection: Connection,
        name: TableName,
        entries: Sequence[LedgerEntry],
        stored: StoredPolicy | None,
        since: datetime,
        until: datetime,
        now: datetime,
    ) -> Record:
        own = [each for each in entries if each.table == name]
        inside = [each for each in own if each.at >= written_at(since)]
        runs = [each.became for each in inside if each.kind == EntryKind.RUN]
        return {
            "table": name.name,
            "schema": name.schema,
            "policies": _promised(own, since),
            "holds": _holds(own, since),
            "jobs": dict(sorted(Counter(run["status"] for run in runs).items())),
            "deleted": sum(run["deleted"] for run in runs),
            "archived": sum(run["deleted"] for run in runs if "archive" in run),
            "restored": sum(each.became["restored"] for each in inside if each.kind == EntryKind.RESTORED),
            "longest_without_job_seconds": _longest_gap(inside, since, until),
            "now": None if stored is None else self._look(connection, stored, now),
        }

    def _look(self, connection: Connection, stored: StoredPolicy, now: datetime) -> Record:
        """Every row is asked, with the condition that a job would have now."""
        parts = policies.list_tables(connection, stored.id)
        within = stored.policy.delete_within
        found = [
            self._count(connection, self._keeper.declared(connection, stored, part.name_in(stored.table)), within, now)
            for part in parts
        ]
        rows, overdue, expired, held = (sum(each) for each in zip(*found, strict=True)) if found else (0, 0, 0, 0)
        return {
            "checked_at": written_at(now),
            "policy_version": stored.version,
            "rows": rows,
            "expired": expired,
            "overdue": max(0, overdue - held),
            "cannot_be_deleted": held,
            "delete_within": str(within),
        }

    def _count(self, connection: Connection, declared: BoundPolicy, within: Any, now: datetime) -> tuple[int, ...]:
        """Rows, those that expired so long ago that they must be gone, all expired ones, and those that others hold."""
        earlier = within.subtracted_from(now)
        found = self._engine.expiring(connection, declared, (earlier, now), exact=True)
        overdue, expired = found.counts
        target = self._engine.target(connection, declared, earlier)
        held = self._engine.consequences(connection, target, overdue, None).held if overdue else 0
        return found.rows, overdue, expired, held


def parse_time(name: str, text: str) -> datetime:
    """ISO 8601 with a zone, or a day, which begins at midnight UTC."""
    try:
        found = datetime.fromisoformat(f"{text}T00:00:00Z" if len(text) == len("2026-01-31") else text)
    except ValueError:
        raise InvalidValue(name, text, "must be ISO 8601, such as 2026-01-31 or 2026-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        raise InvalidValue(name, text, "has no zone", hint=f"write {found.isoformat()}Z for UTC")
    return found


def _check_time(since: datetime, until: datetime, now: datetime) -> None:
    if since >= until:
        raise UsageError(f"the time ends at {until.isoformat()}, before it begins")
    if until > now:
        raise UsageError(
            f"the time ends in the future: the database's clock says {written_at(now)}",
            hint=f"--to {written_at(now)}, or earlier",
        )


def _tables(entries: Sequence[LedgerEntry]) -> list[TableName]:
    """Those that had a policy or a hold, in the order of their names."""
    return sorted({each.table for each in entries if each.table is not None}, key=str)


def _promised(entries: Sequence[LedgerEntry], since: datetime) -> list[Record]:
    """The versions of the policy that held at some moment of the time; `to` is null for the one at its end."""
    found: list[Record] = []
    for each in entries:
        ends = each.kind == EntryKind.REMOVED or (each.kind in _POLICY_KINDS and "policy" in each.became)
        if ends and found and found[-1]["to"] is None:
            found[-1]["to"] = each.at
        if ends and each.kind != EntryKind.REMOVED:
            said = each.became
            by = {"role": each.role, "user": each.user}
            found.append(
                {"version": said["version"], "policy": said["policy"], "from": each.at, "to": None, "declared_by": by}
            )
    return [each for each in found if each["to"] is None or each["to"] >= written_at(since)]


def _holds(entries: Sequence[LedgerEntry], since: datetime) -> list[Record]:
    found: dict[int, Record] = {}
    for each in entries:
        said = each.became if each.kind in (EntryKind.HELD, EntryKind.FOUND) else {}
        if "hold" in said:
            kept = {name: said.get(name) for name in ("hold", "where", "until", "reason")}
            found[said["hold"]] = kept | {"placed_at": each.at, "released_at": None}
        elif each.kind == EntryKind.RELEASED and each.was.get("hold") in found:
            found[each.was["hold"]]["released_at"] = each.at
    ended = written_at(since)
    return [each for each in found.values() if min(each["released_at"] or "Z", each["until"] or "Z") >= ended]


def _longest_gap(entries: Sequence[LedgerEntry], since: datetime, until: datetime) -> float:
    """Without a job that went through the table, or one of its partitions."""
    ends = [datetime.fromisoformat(each.at) for each in entries if _is_through(each)]
    times = [since, *sorted(ends), until]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return max(gaps, default=timedelta()).total_seconds()


def _is_through(entry: LedgerEntry) -> bool:
    return entry.kind == EntryKind.RUN and entry.became["status"] == "finished"


def _ledger(verdict: ChainVerdict) -> Record:
    return {"head": str(verdict.head), "entries": verdict.entries, "pruned": verdict.pruned, "verified": True}
