"""Deleting a whole partition: the leaf is detached, looked through once more, and dropped."""

from __future__ import annotations

import json
from contextlib import suppress
from threading import Event, Timer
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Batch, Checkpoint, Target
from lapse.engines.postgres import condition, partition_state, partitions
from lapse.engines.postgres.condition import Condition
from lapse.engines.postgres.delete import CAREFUL_MS, QUERY_CANCELED, WORKING, InterruptibleDeleter, Work, reason_of
from lapse.engines.postgres.errors import sqlstate
from lapse.engines.postgres.names import relation
from lapse.engines.postgres.partition_state import Detachment, PartitionState
from lapse.engines.postgres.session import transaction
from lapse.errors import Drift, Locked, Retryable, RowUndeletable

DETACH_SECONDS = 5.0
"""How long a detachment may wait for transactions that use the table above; what is left is finalized later."""
NOT_NOW, DEPENDED_ON = "55000", "2BP01"

_SETTINGS = WORKING | {"lock_timeout": str(CAREFUL_MS), "statement_timeout": "0", "enable_seqscan": "on"}


class PartitionDeleter(InterruptibleDeleter):
    """Each step looks how far the leaf has come and takes it one further, so any worker can go on after a crash.

    Attached, written down in the catalog, detached, dropped. DETACH CONCURRENTLY waits for the transactions that use
    the table above and blocks none. PostgreSQL cannot do it below a table that has a default partition; there the leaf
    is detached in one short transaction. Rows are counted once the leaf is detached, when no writer can be kept
    waiting. A lock that does not come soon is given up and asked for again later.
    """

    def __init__(self, work: Work, target: Target) -> None:
        super().__init__()
        self._work = work
        self._target = target
        self._name = work.table.name
        self._refusal: str | None = None

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        if self._refusal is not None:
            raise RowUndeletable(self._refusal)
        with self._work.connect() as connection, self.watched(connection):
            if not self._work.function.is_own:
                return self._drop_for_owner(connection, checkpoint)
            state = self._state(connection)
            if state.detachment is not None and state.pending:
                return self._finalize(connection, state, checkpoint)
            if state.detachment is not None:
                return self._drop(connection, state, checkpoint)
            if state.parent is None or state.pending:
                raise Drift(f"{self._name} is no partition any more: it was detached, and not by a job")
            return self._detach(connection, state, checkpoint)

    def _drop_for_owner(self, connection: Connection, checkpoint: Checkpoint) -> Batch:
        """With another owner's rights, all is done by the owner's function, in one transaction: detaching concurrently
        is not possible there, and would run what belongs to the table with this role's rights."""
        with transaction(connection, _SETTINGS):
            found = self._ask(connection, "drop")
            if not found:
                raise RowUndeletable(self._not_expired)
            rows = int(found["deleted"])
            batch = Batch(examined=rows, selected=rows, deleted=rows, cursor="dropped", done=True)
            checkpoint(connection, batch)
        return batch

    def _ask(self, connection: Connection, operation: str) -> Any:
        """Raises RowUndeletable where something depends on the leaf, or it has rows that go one by one."""
        work = self._work
        try:
            return work.function.call(connection, work.function.message(operation, [(work.cutoff, work.threshold)]))
        except DBAPIError as error:
            if sqlstate(error.orig) != DEPENDED_ON:
                raise
            raise RowUndeletable(reason_of(error)) from error

    @property
    def _not_expired(self) -> str:
        return f"the range of partition {self._name.partition} has not expired"

    def _state(self, connection: Connection) -> PartitionState:
        """Raises Drift unless the leaf is, or was until a job detached it, below the table that was armed."""
        state = partition_state.find(connection, self._name)
        if state is None:
            raise Drift(f"partition {self._name} does not exist any more")
        armed = json.loads(self._target.armed or "{}").get("table")
        if armed is not None and state.root is not None and str(state.root) != str(armed):
            raise Drift(f"{self._name} is a partition of another table now")
        return state

    def _condition(self, connection: Connection) -> Condition:
        """That of the job, at the server's own clock where that is behind the cutoff."""
        now = connection.exec_driver_sql("SELECT pg_catalog.clock_timestamp()").scalar_one()
        return condition.at(self._target.declared, min(self._target.cutoff, now))

    def _check_range(self, connection: Connection) -> Condition:
        found = self._condition(connection)
        spans = partitions.spans(connection, partition_state.find(connection, self._name), found)
        if not partitions.has_expired(connection, spans, found):
            raise RowUndeletable(self._not_expired)
        return found

    def _detach(self, connection: Connection, state: PartitionState, checkpoint: Checkpoint) -> Batch:
        assert state.parent is not None
        begun = Batch(cursor="detaching")
        with transaction(connection, _SETTINGS):
            self._check_range(connection)
            if not self._ask(connection, "may drop"):
                raise RowUndeletable(self._not_expired)
            partition_state.begin(connection, state, self._name.whole)
            parent, leaf = (
                partition_state.name_of(connection, state.parent),
                partition_state.name_of(connection, state.oid),
            )
            if state.has_default:
                connection.exec_driver_sql(f"ALTER TABLE {parent} DETACH PARTITION {leaf}")
            checkpoint(connection, begun)
        if state.has_default:
            return begun
        # A leaf with foreign keys makes the statement lock the tables they point at, so it gets less time.
        patience = CAREFUL_MS / 1000 if state.refers else DETACH_SECONDS
        try:
            self._run_for(connection, patience, f"ALTER TABLE {parent} DETACH PARTITION {leaf} CONCURRENTLY")
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            code, now = sqlstate(error.orig), self._state(connection)
            if now.parent is None and now.detachment is not None:
                # Another task was faster to finalize it, taking this one's worker for dead.
                return begun
            if code == NOT_NOW or not now.pending:
                # It is attached, or another session detaches it: the catalog would say that it was us.
                partition_state.forget(connection, state.oid)
            if code != NOT_NOW:
                raise
            self._make_way(connection, state.parent)
            raise Retryable(reason_of(error)) from error
        return begun

    def _make_way(self, connection: Connection, parent: int) -> None:
        """Only one partition at a time can be detached, and a worker may have died over another one."""
        other = partition_state.pending_below(connection, parent)
        if other is not None:
            above = partition_state.name_of(connection, parent)
            with suppress(DBAPIError), transaction(connection, _SETTINGS):
                connection.exec_driver_sql(f"ALTER TABLE {above} DETACH PARTITION {relation(other)} FINALIZE")

    def _run_for(self, connection: Connection, seconds: float, sql: str) -> None:
        """Outside a transaction there is no SET LOCAL, so the time is kept here."""
        late = Event()

        def give_up() -> None:
            late.set()
            self.interrupt()

        timer = Timer(seconds, give_up)
        timer.start()
        try:
            connection.exec_driver_sql(sql)
        except DBAPIError as error:
            if sqlstate(error.orig) != QUERY_CANCELED or not late.is_set():
                raise
            raise Locked(f"others still use the table from which {self._name} is detached") from error
        finally:
            timer.cancel()
            # A cancellation that comes late must find the session idle, not at its next statement.
            timer.join()

    def _finalize(self, connection: Connection, state: PartitionState, checkpoint: Checkpoint) -> Batch:
        assert state.parent is not None
        ended = Batch(cursor="detached")
        try:
            with transaction(connection, _SETTINGS):
                parent, leaf = (
                    partition_state.name_of(connection, state.parent),
                    partition_state.name_of(connection, state.oid),
                )
                connection.exec_driver_sql(f"ALTER TABLE {parent} DETACH PARTITION {leaf} FINALIZE")
                checkpoint(connection, ended)
        except DBAPIError:
            if self._state(connection).pending:
                raise
            # A worker that was killed has left its statement running, and that was faster.
        return ended

    def _drop(self, connection: Connection, state: PartitionState, checkpoint: Checkpoint) -> Batch:
        """Everything is looked at again under the lock: that it is this table, its range, and every row of it."""
        assert state.detachment is not None
        try:
            with transaction(connection, _SETTINGS):
                leaf = partition_state.lock(connection, state.oid, "ACCESS EXCLUSIVE")
                if self._state(connection) != state:
                    raise Retryable(f"{self._name} has just changed")
                rows = self._count(connection, leaf, self._check_range(connection))
                connection.exec_driver_sql(f"DROP TABLE {leaf}")
                partition_state.forget(connection, state.oid)
                batch = Batch(examined=rows, selected=rows, deleted=rows, cursor="dropped", done=True)
                checkpoint(connection, batch)
                return batch
        except RowUndeletable as error:
            self._refuse(connection, state.detachment, error.message)
            raise
        except DBAPIError as error:
            if sqlstate(error.orig) != DEPENDED_ON:
                raise
            self._refuse(connection, state.detachment, reason_of(error))
            raise RowUndeletable(reason_of(error)) from error

    def _count(self, connection: Connection, leaf: str, found: Condition) -> int:
        live, rows = connection.exec_driver_sql(
            f"SELECT count(*) FILTER (WHERE ({found.sql}) IS NOT TRUE), count(*) FROM ONLY {leaf}"
        ).one()
        if live:
            raise RowUndeletable(f"{live} rows of partition {self._name.partition} have not expired")
        if not self._target.declared.policy.row_by_row:
            return int(rows)
        # Rows that came after planning, or whose job knew of no archive: it comes back, and the next job moves them.
        if rows:
            raise RowUndeletable(f"partition {self._name.partition} has {rows} rows, which are to go one by one")
        if partition_state.is_secured(connection, leaf):
            raise RowUndeletable(f"row security may hide rows of partition {self._name.partition}")
        return 0

    def _refuse(self, connection: Connection, left: Detachment, reason: str) -> None:
        """The leaf stays, and goes back to where it was."""
        with transaction(connection, _SETTINGS):
            partition_state.bring_back(connection, left)
        self._refusal = reason

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        batch = Batch(selected=1, held=1, cursor="held", done=True)
        with self._work.connect() as connection, transaction(connection, WORKING):
            checkpoint(connection, batch)
        return batch

    def restart(self) -> None:
        pass
