"""Deleting a whole partition: the leaf is detached, looked through once more, and dropped."""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Timer

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Batch, Checkpoint
from lapse.engines.postgres import leaving, partitions
from lapse.engines.postgres.delete import CAREFUL_MS, QUERY_CANCELED, WORKING, Work, reason_of
from lapse.engines.postgres.interrupting import InterruptibleDeleter
from lapse.engines.postgres.leaving import Mark, Place
from lapse.engines.postgres.names import relation
from lapse.engines.postgres.session import sqlstate, transaction
from lapse.errors import Drift, Retryable, RowUndeletable

DETACH_SECONDS = 5.0
"""How long a detachment may wait for transactions that use the table above; what is left is finalized later."""
NOT_NOW, DEPENDED_ON = "55000", "2BP01"

_SETTINGS = WORKING | {"lock_timeout": str(CAREFUL_MS), "statement_timeout": "0", "enable_seqscan": "on"}


class PartitionDeleter(InterruptibleDeleter):
    """Each step looks how far the leaf has come and takes it one further; so anybody can go on after a crash.

    Attached, marked in its comment, detached, dropped. DETACH CONCURRENTLY waits for those who use the table above and
    blocks nobody. PostgreSQL cannot do it below a table that has a default partition; there everything happens in one
    transaction, and the table above is locked for the drop alone. Any other lock that does not come soon is given up
    and tried again later, so nobody queues behind it for long.
    """

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self._name = work.table.name
        self._leaf = relation(work.table.name)
        self._refusal: str | None = None

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        if self._refusal is not None:
            raise RowUndeletable(self._refusal)
        with self._work.connect() as connection, self.watched(connection):
            place = leaving.place(connection, self._name)
            if place.has_left and place.parent is not None:
                return self._finalize(connection, place.parent, checkpoint)
            if place.has_left:
                return self._drop(connection, place, checkpoint)
            if place.parent is None or place.pending:
                raise Drift(f"{self._name} is no partition any more: somebody else has detached it")
            if not partitions.has_expired(connection, self._name, self._work.condition):
                raise RowUndeletable(f"the range of partition {self._name.partition} has not expired")
            if place.has_default:
                return self._drop(connection, place, checkpoint)
            return self._detach(connection, place, checkpoint)

    def _detach(self, connection: Connection, place: Place, checkpoint: Checkpoint) -> Batch:
        assert place.parent is not None
        assert place.bound is not None
        begun = Batch(cursor="detaching")
        with transaction(connection, _SETTINGS):
            mark = Mark(parent=place.parent, bound=place.bound)
            leaving.write(connection, self._name, mark.written_after(place.comment))
            checkpoint(connection, begun)
        # A leaf with foreign keys makes the statement lock the tables they point at, so it gets less time.
        patience = CAREFUL_MS / 1000 if place.refers else DETACH_SECONDS
        detach = f"ALTER TABLE {place.parent} DETACH PARTITION {self._leaf} CONCURRENTLY"
        try:
            self._run_for(connection, patience, detach)
        except DBAPIError as error:
            code = sqlstate(error.orig)
            if code not in (NOT_NOW, QUERY_CANCELED) and leaving.place(connection, self._name).has_left:
                # Another task made way for its own partition and finalized this one.
                return begun
            if code != NOT_NOW:
                raise
            # Somebody is detaching another partition, or this one: a mark would say that it was us.
            leaving.write(connection, self._name, place.comment)
            self._make_way(connection, place.parent)
            raise Retryable(reason_of(error)) from error
        return begun

    def _make_way(self, connection: Connection, parent: str) -> None:
        """Only one partition at a time can be detached, and nobody may be at work on the one that a job began with."""
        other = leaving.pending_below(connection, parent)
        if other is not None:
            with suppress(DBAPIError), transaction(connection, _SETTINGS):
                connection.exec_driver_sql(f"ALTER TABLE {parent} DETACH PARTITION {relation(other)} FINALIZE")

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
            raise Retryable(f"others still use the table from which {self._name} is detached") from error
        finally:
            timer.cancel()
            # A cancellation that comes late must find the session idle, not at its next statement.
            timer.join()

    def _finalize(self, connection: Connection, parent: str, checkpoint: Checkpoint) -> Batch:
        ended = Batch(cursor="detached")
        try:
            with transaction(connection, _SETTINGS):
                connection.exec_driver_sql(f"ALTER TABLE {parent} DETACH PARTITION {self._leaf} FINALIZE")
                checkpoint(connection, ended)
        except DBAPIError:
            if leaving.place(connection, self._name).pending:
                raise
            # A worker that was killed has left its statement running, and that was faster.
        return ended

    def _drop(self, connection: Connection, place: Place, checkpoint: Checkpoint) -> Batch:
        """Counted while nobody can write to it, dropped in the same transaction."""
        try:
            with transaction(connection, _SETTINGS):
                rows = self._count(connection)
                if place.parent is not None:
                    connection.exec_driver_sql(f"LOCK TABLE ONLY {place.parent} IN ACCESS EXCLUSIVE MODE")
                connection.exec_driver_sql(f"DROP TABLE {self._leaf}")
                batch = Batch(examined=rows, selected=rows, deleted=rows, cursor="dropped", done=True)
                checkpoint(connection, batch)
                return batch
        except RowUndeletable as error:
            self._refuse(connection, place, error.message)
            raise
        except DBAPIError as error:
            if sqlstate(error.orig) != DEPENDED_ON:
                raise
            self._refuse(connection, place, reason_of(error))
            raise RowUndeletable(reason_of(error)) from error

    def _count(self, connection: Connection) -> int:
        connection.exec_driver_sql(f"LOCK TABLE ONLY {self._leaf} IN SHARE MODE")
        live, rows = connection.exec_driver_sql(
            f"SELECT count(*) FILTER (WHERE ({self._work.condition.sql}) IS NOT TRUE), count(*) FROM ONLY {self._leaf}"
        ).one()
        if live:
            raise RowUndeletable(f"{live} rows of partition {self._name.partition} have not expired")
        return int(rows)

    def _refuse(self, connection: Connection, place: Place, reason: str) -> None:
        """The leaf stays, and goes back to where it was."""
        self._refusal = reason
        if place.parent is None and place.mark is not None:
            with transaction(connection, _SETTINGS):
                connection.exec_driver_sql(
                    f"ALTER TABLE {place.mark.parent} ATTACH PARTITION {self._leaf} {place.mark.bound}"
                )
                leaving.write(connection, self._name, place.comment)

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        batch = Batch(selected=1, held=1, cursor="held", done=True)
        with self._work.connect() as connection, transaction(connection, WORKING):
            checkpoint(connection, batch)
        return batch

    def restart(self) -> None:
        pass
