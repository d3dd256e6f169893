"""What is in a table now: counted in a small table, in a large one told by a sample."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.base import Survey, Target
from lapse.engines.mysql import condition, forecast, paths
from lapse.engines.mysql.condition import Condition
from lapse.engines.mysql.names import source
from lapse.model.table import Table


def survey(connection: Connection, target: Target) -> Survey:
    table = target.declared.table
    found = condition.at(connection, target.declared, target.cutoff)
    sample = forecast.sampled(connection, table, [found])
    return sample.as_survey() if sample is not None else _scanned(connection, table, found)


def _scanned(connection: Connection, table: Table, found: Condition) -> Survey:
    """Every row is read, without a lock."""
    rows, expired, oldest, newest = connection.exec_driver_sql(
        f"SELECT count(*), coalesce(sum({found.sql} IS TRUE), 0), min(if({found.sql}, {found.moment}, NULL)),"
        f" max(if({found.sql}, {found.moment}, NULL)) FROM {source(table.name)}"
    ).one()
    size = paths.table_bytes(connection, table.name)
    return Survey(
        rows=int(rows),
        expired=int(expired),
        oldest=found.expiry(oldest),
        newest=found.expiry(newest),
        bytes=None if size is None or not rows else size * int(expired) // int(rows),
        exact=True,
        method="scan",
    )
