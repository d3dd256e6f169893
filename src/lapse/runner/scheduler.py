"""Which tables are due, and the jobs for them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from random import random, sample
from time import monotonic
from typing import Protocol

from sqlalchemy import Connection

from lapse.catalog import Catalog, meta, migrations, policies, workers
from lapse.catalog import jobs as stored_jobs
from lapse.catalog.policies import PhysicalTable, StoredPolicy
from lapse.catalog.pulse import Pulse, has_old_rows, read_outset, read_pulse
from lapse.engines.base import LeafChanges
from lapse.errors import Blocked, DatabaseUnavailable, LapseError, Locked
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, JobStatus, Task
from lapse.model.policy import PAUSED_BY_POLICY
from lapse.model.settings import AUTO, Settings
from lapse.model.table import TableName
from lapse.runner import ledger
from lapse.runner.atonce import AtOnce
from lapse.runner.clockwatch import ClockWatch
from lapse.runner.comments import CommentProblem, CommentReader
from lapse.runner.events import Held, HeldKind
from lapse.runner.guard import Guard
from lapse.runner.jobs import JobKeeper, as_blocked, block_text
from lapse.runner.place import PlaceGuard
from lapse.runner.policy_manager import policy_leaves
from lapse.runner.retry import retried
from lapse.runner.verdict import Verdict, judge
from lapse.schedule import next_run

SYNC_SECONDS = 60.0
"""A new partition is seen this soon."""
ROUND_SECONDS = 1.0
"""A worker's round creates jobs for this long; tasks begin after it, and the next round goes on."""
LOOKED_AT_ONCE = 16
"""Tables that are described together, a moment before their jobs are planned."""
MOST_DUE = 256
"""Policies that are due and that a worker's round reads, by chance: more than it has time for."""
FEW_LEAVES = 8
"""A table with no more leaves than this that are due gets a job for each, and the history shows it."""
FRESH_SECONDS = 0.1
"""A table that was found due longer ago is asked for again before its job is planned: another worker may have it."""
WORKER_MEMORY = timedelta(hours=1)
"""How long a worker that died stays in the list."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A table that was due, or asked for, and got no job; `blocked` says that this is not as it should be."""

    table: TableName
    reason: str
    blocked: BlockCode | None = None

    @property
    def held(self) -> bool:
        """Does it wait for a person to confirm its first run?"""
        return self.blocked is BlockCode.GUARD


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """One round of the scheduler: the jobs that are active now, what was skipped, and the settings that it went by."""

    settings: Settings
    now: datetime
    jobs: tuple[Job, ...]
    skipped: tuple[Skip, ...] = ()
    proposals: tuple[CommentProblem, ...] = ()
    claimed: Task | None = None
    """The first task of the only job that the round has created, where the caller wants to begin with it at once."""
    left_over: bool = False
    """Are there tables for which the round had no time?"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Before:
    """What was there just before a round, and what kept all jobs from running then; `now` and `at` are one moment, by
    the database's clock and by this process's."""

    now: datetime
    at: float
    settings: Settings
    blocker: str | None
    pulse: Pulse
    acted: bool = False
    """The round has changed what the pulse tells: what came after it may look as what was before it."""


class Hands(Protocol):
    """Threads that run tasks while the scheduler makes more of them."""

    def is_free(self) -> bool:
        """Does one of them wait for a task? Waits a moment for that, so that tasks do not queue up."""

    def take(self, task: Task, settings: Settings, now: datetime) -> None:
        """Begin with a task that was claimed for them."""


class _Ahead:
    """The tables that a round comes to next, and which of them are still due: asked for all of them together, and again
    before a job is planned where that was a while ago, or other workers are at the same tables."""

    def __init__(self, catalog: Catalog, began: float) -> None:
        self._catalog = catalog
        self._began = began
        self._fresh_seconds = FRESH_SECONDS
        self._next: Sequence[PhysicalTable] = ()
        self._known: dict[tuple[int, datetime | None], tuple[bool, float]] = {}

    def come_to(self, several: Sequence[PhysicalTable]) -> set[int]:
        """Ids of those that another worker has taken since they were found due."""
        self._next = several
        if any(self._is_stale(each) for each in several):
            self._ask(several)
        return {each.id for each in several if not self._seen(each)[0]}

    def is_due(self, physical: PhysicalTable) -> bool:
        if self._is_stale(physical):
            place = next((number for number, each in enumerate(self._next) if each.id == physical.id), len(self._next))
            self._ask([physical, *self._next[place + 1 :]])
        return self._seen(physical)[0]

    def _is_stale(self, physical: PhysicalTable) -> bool:
        is_due, at = self._seen(physical)
        return is_due and monotonic() - at > self._fresh_seconds

    def _seen(self, physical: PhysicalTable) -> tuple[bool, float]:
        return self._known.get((physical.id, physical.next_run_at), (True, self._began))

    def _ask(self, several: Sequence[PhysicalTable]) -> None:
        wanted = [each for each in several if self._seen(each)[0]]
        with self._catalog.reading() as connection:
            found = policies.untouched(connection, wanted)
        now = monotonic()
        self._fresh_seconds = FRESH_SECONDS if len(found) == len(wanted) else 0.0
        self._known |= {(each.id, each.next_run_at): (each.id in found, now) for each in wanted}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """What one round goes by. `asked` is the policy that a person wants to run now, due or not; a round that is
    `patient` is a worker's, which lets a policy's grace period pass."""

    now: datetime
    settings: Settings
    policies: Mapping[int, StoredPolicy]
    tables: Mapping[int, list[PhysicalTable]]
    asked: StoredPolicy | None
    patient: bool
    began: float
    ahead: _Ahead
    claims: bool = False
    hands: Hands | None = None
    at_once: AtOnce | None = None

    def claims_of(self, due: Sequence[PhysicalTable]) -> bool:
        """Is the task of one of these tables begun with at once?"""
        return (self.claims and len(due) == 1) or (self.hands is not None and self.hands.is_free())

    def parts(self, stored: StoredPolicy) -> list[PhysicalTable]:
        return self.tables.get(stored.id, [])

    def is_due(self, physical: PhysicalTable) -> bool:
        """A table that never had a job is due at once."""
        return self.asked is not None or physical.next_run_at is None or physical.next_run_at <= self.now


class Scheduler:
    def __init__(self, catalog: Catalog, keeper: JobKeeper) -> None:
        self._catalog = catalog
        self._keeper = keeper
        self._watch = ClockWatch()
        self._synced_at: dict[int, float] = {}
        self._place = PlaceGuard(catalog)
        self._guard = Guard(catalog, keeper)
        self._held: dict[int, Held] = {}
        self._leaves_at = float("-inf")
        self.comments = CommentReader(catalog)
        self._requests_sql: str | None = None
        self.has_requests = False
        """Did requests wait when the pulse was last read?"""
        self._before: _Before | None = None
        self._reads_all = False
        """Does the next round read all that are due, however many?"""
        self._pauses: dict[int, Verdict] = {}
        """Job → the pause that this process has written down for it."""

    def is_idle(self) -> bool:
        """Would another round find what the last one left? Asked with one statement, however many policies there are.

        False now and then in any case: what is not in the catalog, such as new partitions and comments, is looked for
        by rounds.
        """
        before = self._before
        if before is None or before.acted or before.pulse.active_jobs or monotonic() - before.at > SYNC_SECONDS:
            return False
        clock = self._catalog.engine.clock
        now = clock.now() if clock is not None else before.now + timedelta(seconds=monotonic() - before.at)
        if before.settings.blocker(now) != before.blocker:
            return False
        with self._catalog.reading() as connection:
            pulse = self._read_pulse(connection, now)
        return pulse == before.pulse

    def _read_pulse(self, connection: Connection, now: datetime) -> Pulse:
        """Raises CatalogTooNew where a newer Lapse has upgraded the catalog."""
        try:
            pulse = read_pulse(connection, now, self._requests_sql)
        except Exception:
            # Perhaps for the requests, which are looked for again in a while.
            self._requests_sql = None
            raise
        if pulse.version is not None and pulse.version.isdecimal():
            migrations.check(int(pulse.version))
        self.has_requests = pulse.requests > 0
        return pulse

    @property
    def knows_requests(self) -> bool:
        """Does a look tell whether requests wait that people have made with the database's own client?"""
        return self._requests_sql is not None

    def seconds_until_due(self) -> float:
        """Until the first table falls due that was not due in the last round; infinite where there is none."""
        before = self._before
        if before is None or before.pulse.next_due_at is None:
            return float("inf")
        passed = monotonic() - before.at
        return max(0.0, (before.pulse.next_due_at - before.now).total_seconds() - passed)

    def run_once(
        self,
        *,
        only: StoredPolicy | None = None,
        patient: bool = False,
        claims: bool = False,
        hands: Hands | None = None,
        at_once: AtOnce | None = None,
    ) -> Tick:
        """Settle what is active and create what is due; with `only`, that policy's jobs whether due or not.

        What goes wrong for one table is that table's alone: the others are settled and get their jobs. With `claims`
        the caller begins at once with the first task, where one job is created. `hands` take such tasks of a patient
        round while it goes on. Small jobs are done `at_once`.
        """
        self._keeper.look_again()
        engine = self._catalog.engine
        with self._catalog.reading() as connection:
            now, place = engine.whereabouts(connection)
            outset = read_outset(connection)
            self._place.look(place, outset.facts.get(meta.PLACE))
            comments = {problem.table: problem for problem in self._read_comments(only)}
            # A single run never asks whether anything has changed since.
            pulse = self._read_pulse(connection, now) if patient else None
            at, current = monotonic(), outset.settings
            active = stored_jobs.active_jobs(connection) if outset.has_active_jobs else []
            wanted, has_more = self._wanted(connection, now, active, only, patient=patient)
            # Read again where one was given: the guard or a comment may have changed it.
            found = policies.find_policies(connection, wanted)
            tables: dict[int, list[PhysicalTable]] = {}
            for physical in policies.find_tables(connection, wanted, now):
                tables.setdefault(physical.policy_id, []).append(physical)
            forgets = self._has_old_rows(connection, now, current)
        self._tell_held(found)
        current = self._watch.check(self._catalog, now, current, outset.facts)
        if forgets:
            self._forget(now, current)
        if pulse is not None:
            self._before = _Before(now=now, at=at, settings=current, blocker=current.blocker(now), pulse=pulse)
        round_ = _Round(
            now=now,
            settings=current,
            policies={stored.id: stored for stored in found},
            tables=tables,
            asked=only,
            patient=patient,
            began=at,
            ahead=_Ahead(self._catalog, at),
            claims=claims and current.running_tasks == AUTO,
            hands=hands if current.running_tasks == AUTO else None,
            at_once=at_once if current.running_tasks == AUTO else None,
        )
        jobs = self._settle(active, round_)
        claimed: Task | None = None
        skipped = [Skip(table=table, reason=each.reason) for table, each in comments.items() if _is_skipped(each, only)]
        left_over = False
        ordered = self._in_order(round_)
        taken: set[int] = set()
        has_made = False
        for number, stored in enumerate(ordered):
            if patient and monotonic() - at > ROUND_SECONDS:
                left_over = True
                break
            if number % LOOKED_AT_ONCE == 0:
                taken = self._look_ahead(ordered[number : number + LOOKED_AT_ONCE], round_)
            if stored.id in taken:
                continue
            comment = comments.get(stored.table)
            if comment is not None and comment.stored is not None and stored.source == policies.COMMENT:
                due = [part for part in round_.parts(stored) if round_.is_due(part)]
                made, left = self._block(stored, due, _obstacle(comment), round_)
            else:
                made, left, claimed = self._schedule(stored, round_)
            jobs |= {job.id: job for job in made}
            has_made = has_made or bool(made)
            skipped += left
        left_over = left_over or (has_more and has_made)
        # Where none of those got a job, as they are paused or it is not their time, all are looked at before it rests.
        self._reads_all = has_more and not has_made
        if self._before is not None and (has_more or left_over or jobs or any(skip.blocked for skip in skipped)):
            self._before = replace(self._before, acted=True)
        proposals = tuple(each for each in comments.values() if each.proposal) if only is None else ()
        return Tick(
            settings=current,
            now=now,
            jobs=tuple(jobs.values()),
            skipped=tuple(skipped),
            proposals=proposals,
            claimed=claimed,
            left_over=left_over,
        )

    def _look_ahead(self, several: Sequence[StoredPolicy], round_: _Round) -> set[int]:
        """Describe the tables that are due together. Returns the ids of those policies whose table another worker has
        taken since this round began."""
        due = [(stored, [part for part in round_.parts(stored) if round_.is_due(part)]) for stored in several]
        due = [(stored, parts) for stored, parts in due if parts]
        few = [part for _, parts in due if len(parts) <= FEW_LEAVES for part in parts]
        taken: set[int] = set()
        if len(due) > 1 and few and round_.patient:
            gone = round_.ahead.come_to(few)
            taken = {stored.id for stored, parts in due if all(part.id in gone for part in parts)}
        left = [stored for stored, _ in due if stored.id not in taken]
        if len(left) > 1 and self._catalog.engine.features.describes_together:
            self._keeper.look_at(left)
        return taken

    def _wanted(
        self,
        connection: Connection,
        now: datetime,
        active: Sequence[Job],
        only: StoredPolicy | None,
        *,
        patient: bool,
    ) -> tuple[set[int], bool]:
        """Ids of the policies that a round is about: what is due, at work or waits for a person, however many others
        there are; and now and then those whose partitions may have changed. And whether more are due."""
        working = {job.policy_id for job in active}
        if only is not None:
            return {only.id} | working, False
        changing = monotonic() - self._leaves_at > SYNC_SECONDS
        if changing:
            self._leaves_at = monotonic()
            self._requests_sql = self._catalog.engine.requests_sql(connection)
        found = policies.waiting_policies(connection, now, after_grace=patient, changing=changing)
        has_more = patient and not changing and not self._reads_all and len(found) > MOST_DUE
        chosen = set(sample(sorted(found), MOST_DUE)) if has_more else found
        return chosen | working | self._held.keys(), has_more

    @staticmethod
    def _in_order(round_: _Round) -> list[StoredPolicy]:
        """Those that failed before come last: what they cost in time is not the others'.

        Among equals chance decides, so that workers that come at the same time do not plan the same jobs.
        """
        wanted = [stored for stored in round_.policies.values() if round_.asked is None or stored.id == round_.asked.id]
        failures = {stored.id: sum(part.failures for part in round_.parts(stored)) for stored in wanted}
        return sorted(wanted, key=lambda stored: (failures[stored.id], random() if round_.patient else 0.0))

    def _read_comments(self, only: StoredPolicy | None) -> tuple[CommentProblem, ...]:
        """A policy that a statement has declared wins over any comment."""
        return () if only is not None and only.source != policies.COMMENT else self.comments.refresh()

    def _tell_held(self, everything: Sequence[StoredPolicy]) -> None:
        """First runs that wait for a person: once when that begins, or this worker does, and once when it is over."""
        for stored in everything:
            known = self._held.get(stored.id)
            reason = stored.held if stored.policy.guard else None
            if reason is not None and known is None:
                fix = f"if that is meant: lapse resume URL {stored.table}"
                event = Held(table=stored.table, kind=HeldKind.FIRST_RUN, reason=reason, fix=fix)
                self._held[stored.id] = event
                self._keeper.listener.held(event)
            elif reason is None and known is not None:
                del self._held[stored.id]
                self._keeper.listener.released(replace(known, reason="the first run is not held any more"))

    def _settle(self, active: Sequence[Job], round_: _Round) -> dict[int, Job]:
        jobs: dict[int, Job] = {}
        pauses: dict[int, Verdict] = {}
        for job in active:
            verdict = judge(job, round_.policies.get(job.policy_id), round_.settings, round_.now)
            if _is_unsettled(job, verdict) or (verdict.pause is not None and self._pauses.get(job.id) != verdict):
                job = self._keeper.settle(job.id)
            if verdict.pause is not None:
                pauses[job.id] = verdict
            if job.status.is_active and (round_.asked is None or job.policy_id == round_.asked.id):
                jobs[job.id] = job
        self._pauses = pauses
        return jobs

    def _schedule(self, stored: StoredPolicy, round_: _Round) -> tuple[list[Job], list[Skip], Task | None]:
        """The jobs of one policy that are due, why others of its tables get none, and the task that was claimed."""
        if round_.patient and stored.grace_until is not None and round_.now < stored.grace_until:
            return [], [], None
        parts, hides = round_.parts(stored), False
        try:
            if round_.asked is not None or self._is_stale(stored, parts, round_):
                parts, hides = self._sync(stored, parts, round_)
            due = [physical for physical in parts if round_.is_due(physical)]
            reasons = dict.fromkeys((physical.id for physical in due), _blocker(stored, round_))
            free = [physical for physical in due if reasons[physical.id] is None]
            is_large = len(free) > FEW_LEAVES or (hides and free)
            clean = self._pass_over(stored, free, round_) if is_large else frozenset()
            left, due, free = ([each for each in some if each.id not in clean] for some in (parts, due, free))
            held = stored.held if stored.policy.guard else None
            if free:
                held = self._guard.blocker(stored, left, some=hides or bool(clean))
        except DatabaseUnavailable:
            raise
        except Exception as error:
            return *self._block(stored, [part for part in parts if round_.is_due(part)], error, round_), None
        if held is not None:
            self._look_again_later(stored, free, round_)
            return (
                [],
                [
                    Skip(table=part.name_in(stored.table), reason=reasons.get(part.id) or held, blocked=BlockCode.GUARD)
                    for part in parts
                ],
                None,
            )
        jobs: list[Job] = []
        skipped: list[Skip] = []
        claimed: Task | None = None
        for physical in due:
            reason = reasons[physical.id]
            if reason is not None:
                skipped.append(Skip(table=physical.name_in(stored.table), reason=reason))
                continue
            if round_.patient and not round_.ahead.is_due(physical):
                continue
            try:
                begun = self._keeper.begin(
                    stored,
                    physical,
                    round_.settings,
                    ends_grace=not round_.patient,
                    claims=partial(round_.claims_of, due),
                    at_once=round_.at_once,
                )
            except DatabaseUnavailable:
                raise
            except Exception as error:
                failed, blocked = self._block(stored, [physical], error, round_)
                jobs += failed
                skipped += blocked
            else:
                jobs += [] if begun.job is None else [begun.job]
                if begun.task is not None and round_.hands is not None:
                    round_.hands.take(begun.task, round_.settings, round_.now)
                else:
                    claimed = begun.task
        return jobs, skipped, claimed

    @retried
    def _pass_over(self, stored: StoredPolicy, due: Sequence[PhysicalTable], round_: _Round) -> frozenset[int]:
        """Ids of the leaves among these whose bounds say that no row has expired: they get neither plan nor job."""
        clean = self._keeper.without_expired(stored, due)
        if round_.asked is not None and len(clean) == len(due):
            # A person who asks for a run gets a job that says that there was nothing to do.
            clean = clean[1:]
        if clean:
            until: dict[datetime, list[PhysicalTable]] = {}
            for physical, end in clean:
                until.setdefault(end, []).append(physical)
            with self._catalog.writing(durable=False) as connection:
                for end, some in sorted(until.items()):
                    next_at = next_run(stored.policy, round_.settings, after=end)
                    policies.pass_over(connection, some, clean_at=end, next_run_at=next_at)
        return frozenset(physical.id for physical, _ in clean)

    def _block(
        self, stored: StoredPolicy, parts: Sequence[PhysicalTable], error: Exception, round_: _Round
    ) -> tuple[list[Job], list[Skip]]:
        if isinstance(error, Locked) and error.everything:
            # The fault is not this table's, and it could not be written down.
            raise error
        if not isinstance(error, LapseError):
            log.exception("table %s cannot be scheduled", stored.table)
        blocked = as_blocked(error)
        failed = [self._keeper.block(stored, part, blocked, always=round_.asked is not None) for part in parts]
        names = [part.name_in(stored.table) for part in parts] or [stored.table]
        code, why = BlockCode(blocked.code), block_text(blocked)
        skipped = [Skip(table=name, reason=why, blocked=code) for name in names]
        return [job for job in failed if job is not None], skipped

    @retried
    def _look_again_later(self, stored: StoredPolicy, held: list[PhysicalTable], round_: _Round) -> None:
        """At the time of its next run: the rows may be others then."""
        if held:
            with self._catalog.writing() as connection:
                due = next_run(stored.policy, round_.settings, after=round_.now)
                for physical in held:
                    policies.set_next_run(connection, physical.id, due)

    def _is_stale(self, stored: StoredPolicy, known: list[PhysicalTable], round_: _Round) -> bool:
        """Tables are looked at when one is due, and else only now and then, for new partitions."""
        looked_at = self._synced_at.get(stored.id, float("-inf"))
        due = not known or any(round_.is_due(physical) for physical in known)
        return (due and not stored.policy.pause) or monotonic() - looked_at > SYNC_SECONDS

    @retried
    def _sync(
        self, stored: StoredPolicy, known: list[PhysicalTable], round_: _Round
    ) -> tuple[list[PhysicalTable], bool]:
        """The physical tables of a policy that may hold expired rows, and whether it has others."""
        leaves = self._leaves(stored, round_.now)
        self._synced_at[stored.id] = monotonic()
        if isinstance(leaves, LeafChanges):
            return self._follow(stored, known, leaves, round_), leaves.hides
        if {physical.name_in(stored.table) for physical in known} == set(leaves):
            return known, False
        with self._catalog.writing() as connection:
            return policies.sync_tables(connection, stored.id, leaves), False

    def _follow(
        self, stored: StoredPolicy, known: list[PhysicalTable], changes: LeafChanges, round_: _Round
    ) -> list[PhysicalTable]:
        if changes:
            with self._catalog.writing() as connection:
                policies.write_changes(connection, stored.id, changes, round_.now)
        if changes or {physical.id for physical in known} != changes.open:
            with self._catalog.reading() as connection:
                known = policies.find_tables(connection, {stored.id}, round_.now)
        if known or round_.asked is None:
            return known
        with self._catalog.reading() as connection:
            return policies.any_table(connection, stored.id)

    def _leaves(self, stored: StoredPolicy, now: datetime) -> list[TableName] | LeafChanges:
        """Of the policy's table; the table itself where it is plain, or gone: its job says so."""
        engine = self._catalog.engine
        with engine.connection() as connection:
            try:
                table = self._keeper.declared(connection, stored).table
            except Blocked:
                return [stored.table]
            catalog = self._catalog.bind(connection)
            changes = engine.leaf_changes(connection, table, policy_id=stored.id, version=stored.version, now=now)
            if changes is not None:
                return changes
            return policy_leaves(engine, connection, table, lambda: policies.policy_tables(catalog) - {stored.table})

    @staticmethod
    def _has_old_rows(connection: Connection, now: datetime, current: Settings) -> bool:
        """Is there an ended job, a dead worker or an entry of the ledger to forget?"""
        before = current.history_retention.subtracted_from(now)
        old = has_old_rows(connection, jobs_before=before, workers_before=now - WORKER_MEMORY)
        return old or ledger.is_prunable(connection, current, now)

    @retried
    def _forget(self, now: datetime, current: Settings) -> None:
        with self._catalog.writing() as connection:
            stored_jobs.forget_jobs(connection, before=current.history_retention.subtracted_from(now))
            workers.forget_workers(connection, stale_before=now - WORKER_MEMORY)
        ledger.prune(self._catalog, current, now)


def _is_unsettled(job: Job, verdict: Verdict) -> bool:
    """Does a job's status say something else than its tasks, or than what was asked of it?"""
    if job.tasks_finished >= job.tasks_total or verdict.ends:
        return True
    if verdict.goes_on:
        return job.status in (JobStatus.PAUSED, JobStatus.CANCELLING)
    return job.status is not JobStatus.PAUSED


def _blocker(stored: StoredPolicy, round_: _Round) -> str | None:
    if stored.policy.pause and round_.settings.job_enable:
        return PAUSED_BY_POLICY
    return round_.settings.blocker(round_.now)


def _is_skipped(problem: CommentProblem, only: StoredPolicy | None) -> bool:
    """Does a run leave a table out that it should have worked on? One that has a policy is blocked instead."""
    return only is None and problem.stored is None and not problem.proposal and not problem.untrusted


def _obstacle(problem: CommentProblem) -> Blocked:
    return Blocked(BlockCode.COMMENT, problem.reason, hint=problem.fix)
