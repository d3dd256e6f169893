"""A native job: make MyRocks drop what has expired, now, and see that it did.

Expired rows are invisible from the moment they expire. They leave the files when a compaction meets them, which on a
quiet table may be never.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from lapse.engines.base import Batch, Checkpoint, Deleter, Expiring, Survey
from lapse.engines.keyset import Atomic, Connect
from lapse.engines.mysql.names import literal, source
from lapse.model.table import TableName

COUNTERS = ("Rocksdb_rows_expired", "Rocksdb_rows_filtered")
MAX_COUNTED_ROWS = 5_000_000
"""Up to here the rows left in the files are compared with those one can see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Files:
    """What the files hold for one table: entries of its primary key, and the column families it lies in."""

    entries: int
    families: tuple[str, ...]


class Compactor(Deleter):
    """The whole job is one step. MyRocks counts entries of all tables; only those of this one are reported."""

    def __init__(self, name: TableName, *, connect: Connect, atomic: Atomic) -> None:
        self._name = name
        self._connect = connect
        self._atomic = atomic

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        with self._connect() as connection:
            with self._atomic(connection):
                # Lets a worker that has lost its lease stop before the expensive part.
                checkpoint(connection, Batch())
            connection.exec_driver_sql("SET GLOBAL rocksdb_force_flush_memtable_now = 1")
            before, expired_before = _files(connection, self._name), counters(connection)[COUNTERS[0]]
            for family in before.families:
                connection.exec_driver_sql(f"SET GLOBAL rocksdb_compact_cf = {literal(family)}")
            after, expired_after = _files(connection, self._name), counters(connection)[COUNTERS[0]]
            gone = max(0, min(before.entries - after.entries, expired_after - expired_before))
            batch = Batch(
                examined=before.entries,
                selected=gone,
                deleted=gone,
                skipped=self._left_behind(connection, after.entries),
                done=True,
            )
            with self._atomic(connection):
                checkpoint(connection, batch)
        return batch

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        return Batch(done=True)

    def restart(self) -> None:
        """There is no cursor: the next step compacts everything again."""

    def _left_behind(self, connection: Connection, entries: int) -> int:
        """Entries that no reader sees and the compaction kept: an old snapshot may still need them."""
        if not entries or entries > MAX_COUNTED_ROWS:
            return 0
        visible = int(connection.exec_driver_sql(f"SELECT count(*) FROM {source(self._name)}").scalar_one())
        return max(0, entries - visible)


def counters(connection: Connection) -> Mapping[str, int]:
    rows = connection.exec_driver_sql(
        f"SHOW GLOBAL STATUS WHERE Variable_name IN ({', '.join(literal(name) for name in COUNTERS)})"
    )
    found = {str(row[0]): int(row[1]) for row in rows}
    return {name: found.get(name, 0) for name in COUNTERS}


def survey(connection: Connection, name: TableName) -> Survey:
    """Expired rows cannot be seen: they are what the files hold beyond the rows one sees."""
    rows = int(connection.exec_driver_sql(f"SELECT count(*) FROM {source(name)}").scalar_one())
    hidden = max(0, _files(connection, name).entries - rows)
    return Survey(
        rows=rows, expired=hidden, oldest=None, newest=None, bytes=None, exact=False, method="files of MyRocks"
    )


def expiring(connection: Connection, name: TableName, instants: int) -> Expiring:
    """MyRocks keeps the time of such a row where no query can read it, so nothing is known about the days to come."""
    found = survey(connection, name)
    return Expiring(
        counts=(found.expired,) * instants,
        rows=found.rows + found.expired,
        bytes=None,
        oldest=None,
        exact=False,
        method=found.method,
        margin=found.rows,
    )


def _files(connection: Connection, name: TableName) -> _Files:
    rows = connection.exec_driver_sql(
        "SELECT d.INDEX_NAME, d.CF, coalesce(sum(m.NUM_ROWS), 0) AS entries FROM information_schema.ROCKSDB_DDL d"
        " LEFT JOIN information_schema.ROCKSDB_INDEX_FILE_MAP m"
        " ON m.COLUMN_FAMILY = d.COLUMN_FAMILY AND m.INDEX_NUMBER = d.INDEX_NUMBER"
        " WHERE d.TABLE_SCHEMA = coalesce(%s, DATABASE()) AND d.TABLE_NAME = %s"
        " AND coalesce(d.PARTITION_NAME, '') = %s GROUP BY d.INDEX_NAME, d.CF",
        (name.schema, name.name, name.partition or ""),
    ).all()
    return _Files(
        entries=sum(int(entries) for index, _, entries in rows if index == "PRIMARY"),
        families=tuple(dict.fromkeys(str(family) for _, family, _ in rows)),
    )
