"""TiDB behind the native protocol: its TTL is declared, switched on after the guard, and its jobs are followed."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event
from time import monotonic

from sqlalchemy import Connection

from lapse.engines.base import Advice, Batch, BoundPolicy, Checkpoint, Declarations, Deleter, Target
from lapse.engines.keyset import Atomic, Connect
from lapse.engines.mysql import inspect, install, privileges, tidb, tidb_jobs
from lapse.engines.mysql.names import qualified, quote
from lapse.engines.mysql.tidb import Ending, Report, Ttl
from lapse.engines.mysql.tidb_jobs import NativeJob
from lapse.engines.native import Native, NativeVerdict
from lapse.errors import Blocked, DatabaseError, Drift, Interrupted, NotPermitted, Unsupported
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, Path, PathKind
from lapse.model.policy import Policy
from lapse.model.table import Table, TableName

OWN_JOBS_SINCE = (8, 5)
"""The first TiDB on which it was tested that a transaction sees a table's definition as its statements do."""
LOOK_SECONDS = 0.5
"""How often a job of TiDB's is looked at."""
STEP_SECONDS = 5.0
"""After so long the runner gets a turn, and looks whether the job is still wanted."""
START_SECONDS = 180.0
"""TiDB puts a job off by a minute when others are at work."""


class Tidb(Native):
    name = "TiDB"
    pauses = True
    hides_expired = False

    def __init__(self, *, connect: Connect, atomic: Atomic, version: tuple[int, ...], own_clock: bool) -> None:
        """`own_clock`: is the time another one than TiDB's?"""
        self._connect = connect
        self._atomic = atomic
        self._version = version
        self._own_clock = own_clock

    def is_available(self, connection: Connection, table: Table) -> bool:
        return True

    def serves(self, connection: Connection, table: Table) -> bool:
        return tidb_jobs.read(connection, table.name) is not None

    # Declare

    def check(self, connection: Connection, declared: BoundPolicy) -> NativeVerdict:
        table, policy = declared.table, declared.policy
        tidb.refuse(table, policy)
        reason = self._why_not(connection, declared)
        if reason is not None:
            return self._own_job(connection, table, reason)
        missing = privileges.lacking_for_tidb(connection)
        if missing:
            raise NotPermitted(missing[0].text, hint=" ".join(str(each.statement) for each in missing))
        notices = [
            *tidb.without_effect(policy),
            "TiDB deletes them by itself, once the first run of Lapse has switched it on: every"
            f" {tidb.every(policy)}, rows whose time is earlier than now to the second, zero dates included",
        ]
        if policy.pause:
            notices.append("TTL_ENABLE = 'OFF' cancels a job of TiDB's; switched on again, it begins from the start")
        return NativeVerdict(notices=tuple(notices))

    def _own_job(self, connection: Connection, table: Table, reason: str) -> NativeVerdict:
        if self._version < OWN_JOBS_SINCE:
            needed = ".".join(map(str, OWN_JOBS_SINCE))
            raise Unsupported(
                f"TiDB's own TTL cannot serve {table.name}: {reason}",
                hint=f"Lapse's own jobs can, on TiDB {needed} or newer",
            )
        found = tidb_jobs.read(connection, table.name)
        removed = f" TiDB's own TTL is removed: {found.column} + {found.interval or '…'}." if found else ""
        return NativeVerdict(reason=f"{reason}.{removed}".rstrip("."))

    def _why_not(self, connection: Connection, declared: BoundPolicy) -> str | None:
        if self._own_clock:
            return "it knows no other clock than TiDB's"
        return tidb.why_not(declared.table, declared.policy) or _why_not_zone(connection, declared)

    def can_express(self, connection: Connection, declared: BoundPolicy) -> bool:
        return self._why_not(connection, declared) is None

    def declare(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> None:
        """Switched off until a job of Lapse's has passed the guard, unless it is on and means the same already."""
        table, policy = declared.table, declared.policy
        if previous is not None:
            install.uninstall(connection, table, previous)
        found = tidb_jobs.read(connection, table.name)
        enabled = found is not None and found.enabled and found.expires_like(policy) and not policy.pause
        wanted = (True, tidb.every(policy), enabled)
        if found is None or (found.expires_like(policy), found.every, found.enabled) != wanted:
            _alter(connection, table.name, tidb.clause(policy, enabled=enabled))
        if missing := self.missing(connection, declared):
            raise Drift(f"TiDB did not take {missing[0]} for table {table.name}")

    def remove(self, connection: Connection, table: Table) -> Table:
        if tidb_jobs.read(connection, table.name) is not None:
            _alter(connection, table.name, "REMOVE TTL")
        return table

    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        install.uninstall(connection, table, policy)
        _alter(connection, table.name, "REMOVE TTL")

    # Read back

    def missing(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        policy = declared.policy
        found = tidb_jobs.read(connection, declared.table.name)
        # A run that was killed leaves the shortest interval behind, which the next one sets right.
        if found is None or not found.expires_like(policy) or found.every not in (tidb.every(policy), tidb.HURRIED):
            return [tidb.clause(policy, enabled=not policy.pause)]
        if found.enabled and policy.pause:
            return ["TTL_ENABLE = 'OFF'"]
        return []

    def obeys(self, connection: Connection, table: Table, policy: Policy) -> bool:
        found = tidb_jobs.read(connection, table.name)
        return found is not None and found.expires_like(policy)

    def path(self, connection: Connection, declared: BoundPolicy) -> Path:
        reason = self._why_not(connection, declared)
        if reason is not None:
            raise Drift(f"table {declared.table.name} has a TTL of TiDB's own, which cannot serve the policy: {reason}")
        return Path(kind=PathKind.NATIVE, evidence=f"TiDB deletes them: {tidb.expiry(declared.policy)}")

    # Observe

    def advice(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        return []

    def privileges(self, connection: Connection) -> list[Advice]:
        return privileges.lacking_for_tidb(connection)

    def counters(self, connection: Connection) -> Mapping[str, int]:
        return {} if self.privileges(connection) else tidb_jobs.counters(connection)

    def undeclared(self, connection: Connection, declared: Declarations) -> dict[TableName, Advice]:
        if self.privileges(connection):
            return {}
        found: dict[TableName, Advice] = {}
        served = tidb_jobs.served(connection)
        policies = declared(served)
        for name in served:
            ttl = tidb_jobs.read(connection, name)
            if ttl is not None and ttl.enabled:
                policy = policies.get(name)
                advice = _undeclared(name, ttl) if policy is None else _in_another_zone(connection, name, policy)
                found |= {} if advice is None else {name: advice}
        return found

    def jobs(self, connection: Connection, name: TableName | None, limit: int) -> list[Job]:
        return [] if self.privileges(connection) else tidb_jobs.recent(connection, name, limit)

    # Run now

    def run(self, target: Target) -> Deleter:
        return NativeRun(target.declared.table.name, target.declared.policy, connect=self._connect, atomic=self._atomic)


def _undeclared(name: TableName, found: Ttl) -> Advice:
    after = found.interval.to_mysql() if found.interval is not None else "INTERVAL …"
    return Advice(
        text="TiDB deletes rows by a TTL that another client has declared, and Lapse does not follow it",
        statement=f"ALTER TABLE {name} TTL = {quote(found.column)} + {after}, with lapse sql: it stays switched on",
    )


def _in_another_zone(connection: Connection, name: TableName, policy: Policy) -> Advice | None:
    """TiDB's global zone can be changed at any time, and with it every row's fate."""
    reason = _why_not_zone(connection, BoundPolicy(table=inspect.describe(connection, name), policy=policy))
    if reason is None:
        return None
    return Advice(text=f"{reason}: TiDB deletes other rows than it says", statement=_stop(name))


def _stop(name: TableName) -> str:
    return f"ALTER TABLE {name} TTL_ENABLE = 'OFF' stops TiDB, which goes on"


def verify(connection: Connection, declared: BoundPolicy) -> None:
    """Raises Blocked where TiDB would not do what the policy says, although it was declared as it says."""
    reason = _why_not_zone(connection, declared)
    if reason is not None:
        stop = f"{_stop(declared.table.name)}; or SET GLOBAL time_zone = '{declared.policy.zone}'"
        raise Blocked(BlockCode.COLUMN_CHANGED, reason, hint=stop)
    if not tidb_jobs.is_switched_on(connection):
        raise Blocked(
            BlockCode.PARTS_MISSING,
            "TiDB runs no TTL jobs: tidb_ttl_job_enable is OFF",
            hint="SET GLOBAL tidb_ttl_job_enable = ON",
        )


def _why_not_zone(connection: Connection, declared: BoundPolicy) -> str | None:
    table, policy = declared.table, declared.policy
    zone = tidb_jobs.zone(connection)
    if not tidb.reads_wall_clock(table, policy) or tidb.is_zone(policy, zone):
        return None
    return f"TiDB reads DATE and DATETIME in the zone {zone}, and the policy in {policy.zone}"


def last_job(connection: Connection, name: TableName) -> str | None:
    """The number of TiDB's newest job for a table."""
    number = tidb_jobs.table_id(connection, name)
    newest = None if number is None else tidb_jobs.newest(connection, number)
    return None if newest is None else newest.id


def refuse_switched_off(connection: Connection, declared: BoundPolicy, last: str | None) -> None:
    """TTL is off before its first job. If TiDB has run one since `last`, another client has switched it off."""
    name = declared.table.name
    found = tidb_jobs.read(connection, name)
    if found is None or found.enabled or declared.policy.pause or last_job(connection, name) == last:
        return
    raise Blocked(
        BlockCode.PARTS_MISSING,
        f"TTL_ENABLE of table {name} is 'OFF', although TiDB has run a job since the policy was declared or resumed",
        hint=f"lapse resume URL {name} switches it on again, lapse pause URL {name} leaves it off",
    )


class NativeRun(Deleter):
    """One job of TiDB's: the one that is at work, or one that is made to start by the shortest interval there is."""

    def __init__(self, name: TableName, policy: Policy, *, connect: Connect, atomic: Atomic) -> None:
        self._name = name
        self._policy = policy
        self._connect = connect
        self._atomic = atomic
        self._before: str | None = None
        self._hurried_at: float | None = None
        self._has_begun = False
        self._interrupted = Event()

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        until = monotonic() + STEP_SECONDS
        with self._connect() as connection:
            if not self._has_begun:
                with self._atomic(connection):
                    # Lets a worker that has lost its lease stop before anything is switched on.
                    checkpoint(connection, Batch())
                self._begin(connection)
            try:
                # The interval is the policy's again before the runner gets a turn.
                while monotonic() < until or self._hurried_at is not None:
                    report = self._look(connection)
                    if report is not None:
                        return self._count(connection, report, checkpoint)
                    if self._interrupted.wait(LOOK_SECONDS):
                        raise Interrupted("the run was stopped; TiDB goes on with its own job")
            except BaseException:
                self._calm_down(connection)
                raise
        return Batch()

    def _begin(self, connection: Connection) -> None:
        self._has_begun = True
        newest, found = self._newest(connection), tidb_jobs.read(connection, self._name)
        if found is None or not found.expires_like(self._policy):
            raise Drift(f"the TTL of table {self._name} was changed", hint="lapse doctor --repair")
        if newest is not None and newest.report is None:
            self._hurried_at = monotonic() if found.every == tidb.HURRIED else None
            return
        self._before = newest.id if newest is not None else ""
        _alter(connection, self._name, "TTL_ENABLE = 'ON'", f"TTL_JOB_INTERVAL = '{tidb.HURRIED.to_go()}'")
        self._hurried_at = monotonic()

    def _look(self, connection: Connection) -> Report | None:
        """None as long as it is not over."""
        newest = self._newest(connection)
        if newest is None or newest.id == self._before:
            found = tidb_jobs.read(connection, self._name)
            if found is None or not found.enabled or not found.expires_like(self._policy):
                raise DatabaseError(f"another client has switched the TTL of table {self._name} off, or changed it")
            if self._hurried_at is not None and monotonic() - self._hurried_at > START_SECONDS:
                raise DatabaseError(
                    f"TiDB has not started a TTL job for {self._name} in {START_SECONDS:.0f} s",
                    hint="see tidb_ttl_running_tasks and the window tidb_ttl_job_schedule_window_start_time",
                )
            return None
        self._calm_down(connection)
        return newest.report

    def _newest(self, connection: Connection) -> NativeJob | None:
        number = tidb_jobs.table_id(connection, self._name)
        return None if number is None else tidb_jobs.newest(connection, number)

    def _calm_down(self, connection: Connection) -> None:
        """The interval that the policy has. Where this is not reached, the next run does it."""
        hurried, self._hurried_at = self._hurried_at is not None, None
        if hurried and not connection.invalidated and tidb_jobs.read(connection, self._name) is not None:
            _alter(connection, self._name, tidb.job_interval(self._policy))

    def _count(self, connection: Connection, report: Report, checkpoint: Checkpoint) -> Batch:
        if report.ending is not Ending.FINISHED:
            how_many = "an unknown number of rows is gone"
            raise DatabaseError(f"TiDB's job was {report.ending}, and {how_many}: {report.message}")
        batch = Batch(
            examined=report.expired,
            selected=report.expired,
            deleted=report.deleted,
            held=report.errors,
            done=True,
        )
        with self._atomic(connection):
            checkpoint(connection, batch)
        return batch

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        return Batch(done=True)

    def restart(self) -> None:
        """There is no cursor: the next step is another job."""
        self._has_begun = False

    def interrupt(self) -> None:
        self._interrupted.set()


def _alter(connection: Connection, name: TableName, *clauses: str) -> None:
    for clause in clauses:
        connection.exec_driver_sql(f"ALTER TABLE {qualified(name)} {clause}")
