"""Looks for what is wrong, or could be better, and repairs what can be repaired."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import Connection

from lapse.app.doctor.checkup import SERVER, check_up
from lapse.app.doctor.finding import Finding, Level
from lapse.app.health import PolicyHealth
from lapse.app.observer import Observer
from lapse.catalog import jobs, policies
from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import BoundPolicy, Engine
from lapse.errors import (
    Blocked,
    CatalogMissing,
    DatabaseError,
    DatabaseUnavailable,
    Drift,
    LapseError,
    NotPermitted,
    Refused,
    Retryable,
    TableNotFound,
)
from lapse.model.blocked import BlockCode
from lapse.runner.comments import CommentProblem, CommentReader
from lapse.runner.events import NullListener
from lapse.runner.guard import EARLIEST, FAR_FUTURE
from lapse.runner.jobs import JobKeeper
from lapse.runner.policy_manager import PolicyManager, load_bound
from lapse.runner.promise import Health

RATE_DAYS = 7
"""The rate of deleting is the average of so many days."""


EXAMINED = (
    BlockCode.TABLE_GONE,
    BlockCode.TABLE_REPLACED,
    BlockCode.COLUMN_CHANGED,
    BlockCode.PARTS_MISSING,
    BlockCode.PARTITIONS_CHANGED,
    BlockCode.DATABASE_COPIED,
    BlockCode.PRIVILEGE,
    BlockCode.UNSUPPORTED,
)
"""What the examination of a table finds by itself, and may have just repaired."""


def _with_verdict(health: PolicyHealth, found: list[Finding], *, has_workers: bool) -> list[Finding]:
    """Findings about one table, with what `lapse status` says of it."""
    subject, table = str(health.stored.table), health.stored.table
    said = f"{health.health.words}: {health.why}"
    if health.health is Health.PAUSED:
        return [Finding(level=Level.OK, subject=subject, text=said), *found]
    if health.health is Health.ON_TIME:
        is_in_order = all(finding.level is Level.OK for finding in found)
        return [*([Finding(level=Level.OK, subject=subject, text="in order")] if is_in_order else []), *found]
    if health.blocked in EXAMINED and any(finding.level is Level.PROBLEM for finding in found):
        return found
    fix = {
        BlockCode.GUARD: f"lapse preview URL {table}, then lapse resume URL {table}",
        BlockCode.NO_WORKER: "lapse worker URL",
        BlockCode.CLOCK: "lapse resume URL --clock",
        BlockCode.ROWS_HELD: f"lapse preview URL {table}",
    }.get(health.blocked) if health.blocked else None  # fmt: skip
    if health.health is Health.LATE:
        fix = f"lapse run URL --table {table}" if has_workers else "lapse worker URL"
    return [Finding(level=Level.PROBLEM, subject=subject, text=said, fix=fix), *found]


def _ranked(findings: list[Finding]) -> list[Finding]:
    """The worst first; one command that resolves the same for several partitions or tables is told once."""
    told: dict[object, Finding] = {}
    for each in findings:
        is_shared = each.level is Level.ADVICE and each.fix is not None
        told.setdefault((each.text, each.fix) if is_shared else each, each)
    order = (Level.PROBLEM, Level.ADVICE, Level.OK)
    return sorted(told.values(), key=lambda each: order.index(each.level))


class Doctor:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._catalog = catalog = observer.catalog
        self._engine = observer.engine
        self._manager = PolicyManager(catalog)
        self._keeper = JobKeeper(catalog, "doctor", NullListener())

    def examine(self, *, repair: bool) -> list[Finding]:
        findings = [
            Finding(
                level=Level.ADVICE if each.stored is None and each.untrusted else Level.PROBLEM,
                subject=str(each.table),
                text=each.reason,
                fix=each.fix or self._grants_for(each),
            )
            for each in CommentReader(self._catalog).run_once()
        ]
        try:
            findings += check_up(self._catalog)
        except CatalogMissing:
            if findings:
                return findings
            raise
        findings += self._client(repair=repair)
        findings += self._strays(repair=repair)
        with self._observer.observe() as seen:
            healths = {health.stored.id: health for health in seen.healths}
            has_workers = bool(seen.workers)
            known = seen.policies
        for stored in sorted(known, key=lambda each: str(each.table)):
            try:
                found = list(self._examine_policy(stored, repair=repair))
            except (Retryable, DatabaseUnavailable):
                raise
            except (Blocked, DatabaseError) as error:
                # Often a privilege that this role lacks; the others are looked at all the same.
                found = [Finding(level=Level.PROBLEM, subject=str(stored.table), text=error.message, fix=error.hint)]
            # A partitioned table that has no partition yet has no health either.
            health = healths.get(stored.id)
            findings += found if health is None else _with_verdict(health, found, has_workers=has_workers)
        return _ranked(findings)

    def _client(self, *, repair: bool) -> Iterator[Finding]:
        """The catalog says that it is all there, and a dump may have left a part of it out."""
        with self._catalog.reading() as connection:
            known = self._catalog.has_client(connection)
            missing = self._engine.missing_client_parts(connection) if known else []
        if missing:
            text = (
                f"procedures for the database's own client are missing: {', '.join(missing)};"
                " a dump that is made without --routines leaves them out"
            )
            fixed = repair and self._catalog.repair_client()
            yield Finding(level=Level.PROBLEM, subject=SERVER, text=text, fix="lapse doctor URL --repair", fixed=fixed)

    def _strays(self, *, repair: bool) -> Iterator[Finding]:
        """Partitions that a job has detached and that no job will drop any more."""
        with self._engine.connection() as connection:
            found = self._engine.strays(connection)
        for stray in found:
            text, fixed = stray.text, False
            if repair and stray.fix is None:
                try:
                    with self._catalog.writing() as connection:
                        self._engine.repair(connection, stray)
                    fixed = True
                except LapseError as error:
                    text = f"{text}; repair failed: {error.message}"
            fix = stray.fix or "lapse doctor --repair"
            yield Finding(level=Level.PROBLEM, subject=str(stray.table), text=text, fix=fix, fixed=fixed)

    def _grants_for(self, problem: CommentProblem) -> str | None:
        """What this role lacks for doing what a comment asks for; None where it lacks nothing."""
        if problem.policy is None:
            return None
        try:
            with self._engine.connection() as connection:
                table = self._engine.describe(connection, problem.table)
                lacking = self._engine.privileges(connection, BoundPolicy(table=table, policy=problem.policy))
        except DatabaseError as error:
            return error.hint
        return " ".join(advice.statement for advice in lacking if advice.statement) or None

    def _examine_policy(self, stored: StoredPolicy, *, repair: bool) -> Iterator[Finding]:
        with self._engine.connection() as connection:
            gone = self._table_gone(connection, stored)
            if gone is None:
                try:
                    declared = load_bound(self._engine, connection, stored)
                    yield from self._examine_table(connection, stored, declared, repair=repair)
                except (Blocked, Drift, Refused) as error:
                    yield Finding(
                        level=Level.PROBLEM,
                        subject=str(stored.table),
                        text=error.message,
                        fix=error.hint or f"ALTER TABLE {stored.table} RESET (ttl), or declare the policy anew",
                    )
        if gone is not None:
            yield self._forget(stored, gone, repair=repair)

    def _table_gone(self, connection: Connection, stored: StoredPolicy) -> str | None:
        try:
            self._engine.describe(connection, stored.table)
        except TableNotFound:
            return f"table {stored.table} does not exist any more, but its policy does"
        return None

    def _forget(self, stored: StoredPolicy, text: str, *, repair: bool) -> Finding:
        if repair:
            with self._catalog.writing() as connection:
                self._engine.dropped(connection, stored.table)
                self._manager.forget(connection, stored, "the table was dropped")
        return Finding(
            level=Level.PROBLEM, subject=str(stored.table), text=text, fix="lapse doctor --repair", fixed=repair
        )

    def _examine_table(
        self, connection: Connection, stored: StoredPolicy, declared: BoundPolicy, *, repair: bool
    ) -> Iterator[Finding]:
        subject = str(stored.table)
        lacking = self._engine.privileges(connection, declared)
        try:
            self._look_at(connection, stored)
        except Blocked as blocked:
            # An account that may not see a part cannot say that it is missing.
            is_blind = blocked.code == BlockCode.PARTS_MISSING and lacking and not repair
            if blocked.code != BlockCode.PARTS_MISSING:
                yield Finding(level=Level.PROBLEM, subject=subject, text=blocked.message, fix=blocked.hint)
            missing = self._engine.missing_parts(connection, declared)
            if missing and (repair or (blocked.code == BlockCode.PARTS_MISSING and not is_blind)):
                yield self._reinstall(stored, declared, missing, repair=repair)
            if not repair and not is_blind:
                return
            if repair and blocked.code == BlockCode.PARTS_MISSING:
                yield from self._still_blocked(connection, stored)
        yield from (Finding(level=Level.PROBLEM, subject=subject, text=a.text, fix=a.statement) for a in lacking)
        if lacking:
            return
        self._engine.check(connection, declared, stored.policy)
        rate = self._deleted_per_day(connection, stored)
        for advice in (
            *self._engine.advice(connection, declared),
            *self._engine.upkeep(connection, declared, rate),
        ):
            yield Finding(level=Level.ADVICE, subject=subject, text=advice.text, fix=advice.statement)
        yield from _implausible_times(self._engine, connection, declared)
        for text in self._engine.space(connection, declared):
            yield Finding(level=Level.OK, subject=subject, text=text)

    def _still_blocked(self, connection: Connection, stored: StoredPolicy) -> Iterator[Finding]:
        """After a repair, which the policy is armed with again."""
        try:
            self._look_at(connection, stored)
        except Blocked as blocked:
            yield Finding(level=Level.PROBLEM, subject=str(stored.table), text=blocked.message, fix=blocked.hint)

    def _look_at(self, connection: Connection, stored: StoredPolicy) -> None:
        """Raises Blocked. What the table is known by now is written down, unless this account may only look."""
        armed = self._keeper.armed(connection, stored)
        with suppress(NotPermitted):
            self._keeper.keep_armed(stored, armed)

    def _deleted_per_day(self, connection: Connection, stored: StoredPolicy) -> float:
        since = self._engine.now(connection) - timedelta(days=RATE_DAYS)
        days = jobs.deleted_per_day(self._catalog.bind(connection), since=since).get(stored.id, {})
        return sum(days.values()) / RATE_DAYS

    def _reinstall(self, stored: StoredPolicy, declared: BoundPolicy, missing: list[str], *, repair: bool) -> Finding:
        text = f"missing in the database: {', '.join(missing)}"
        if repair:
            try:
                with self._engine.transaction() as connection:
                    self._engine.install(connection, declared, stored.policy)
                with self._catalog.writing() as connection:
                    policies.unblock_tables(connection, stored.id)
            except LapseError as error:
                text = f"{text}; repair failed: {error.message}"
                return Finding(level=Level.PROBLEM, subject=str(stored.table), text=text, fix=error.hint)
        return Finding(
            level=Level.PROBLEM, subject=str(stored.table), text=text, fix="lapse doctor --repair", fixed=repair
        )


def _implausible_times(engine: Engine, connection: Connection, declared: BoundPolicy) -> Iterator[Finding]:
    """Do the times in a table look like times? A wrong unit expires everything at once, or nothing ever. A large table
    is not scanned."""
    now = engine.now(connection)
    subject = str(declared.table.name)
    found = [
        engine.expiring(connection, part, (now, now + FAR_FUTURE), exact=False)
        for part in _by_partition(engine, connection, declared)
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


def _by_partition(engine: Engine, connection: Connection, declared: BoundPolicy) -> Iterator[BoundPolicy]:
    for leaf in engine.leaves(connection, declared.table):
        name = leaf.name.partition
        policy = declared.policy if name is None else declared.policy.for_partition(name)
        yield replace(declared, table=leaf, policy=policy)
