"""Deleting a whole partition: the leaf is dropped."""

from __future__ import annotations

from lapse.engines.base import Batch, Checkpoint, Deleter
from lapse.engines.postgres.delete import CAREFUL_MS, WORKING, Work
from lapse.engines.postgres.names import relation
from lapse.engines.postgres.session import transaction
from lapse.errors import RowUndeletable


class PartitionDeleter(Deleter):
    """The whole leaf goes: counted while nobody can write to it, dropped in the same transaction.

    The table above is locked for the drop alone. A lock that does not come soon is given up and tried again later, so
    nobody queues behind it for long.
    """

    def __init__(self, work: Work, parent: str) -> None:
        self._work = work
        self._parent = parent

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        leaf = relation(self._work.table.name)
        settings = WORKING | {"lock_timeout": str(CAREFUL_MS), "statement_timeout": "0", "enable_seqscan": "on"}
        with self._work.connect() as connection, transaction(connection, settings):
            connection.exec_driver_sql(f"LOCK TABLE ONLY {leaf} IN SHARE MODE")
            live, rows = connection.exec_driver_sql(
                f"SELECT count(*) FILTER (WHERE ({self._work.condition.sql}) IS NOT TRUE), count(*) FROM ONLY {leaf}"
            ).one()
            if live:
                raise RowUndeletable(f"{live} rows of partition {self._work.table.name.partition} have not expired")
            connection.exec_driver_sql(f"LOCK TABLE ONLY {self._parent} IN ACCESS EXCLUSIVE MODE")
            connection.exec_driver_sql(f"DROP TABLE {leaf}")
            batch = Batch(examined=rows, selected=rows, deleted=rows, cursor="dropped", done=True)
            checkpoint(connection, batch)
        return batch

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        batch = Batch(selected=1, held=1, cursor="held", done=True)
        with self._work.connect() as connection, transaction(connection, WORKING):
            checkpoint(connection, batch)
        return batch

    def restart(self) -> None:
        pass
