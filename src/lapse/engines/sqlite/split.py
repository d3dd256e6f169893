"""Cutting a job into tasks: ranges of row ids, or the table as a whole where its key is no row id."""

from __future__ import annotations

from itertools import pairwise

from sqlalchemy import Connection

from lapse.engines.base import Target
from lapse.engines.sqlite import forecast, session
from lapse.engines.sqlite.delete import INCLUSIVE, encode_key
from lapse.engines.sqlite.names import quote
from lapse.model.job import KeyRange, PathKind


def ranges(connection: Connection, target: Target, pieces: int, *, looks: bool) -> list[KeyRange]:
    if looks and target.path.kind is PathKind.PHYSICAL and _finds_nothing(connection, target):
        return []
    table = target.declared.table
    name = quote(table.name.name)
    if table.key:
        columns = ", ".join(quote(column) for column in table.key)
        last = connection.exec_driver_sql(
            f"SELECT {columns} FROM {name} ORDER BY {', '.join(f'{quote(c)} DESC' for c in table.key)} LIMIT 1"
        ).first()
        return [] if last is None else [KeyRange(end=INCLUSIVE + encode_key(last))]
    if target.path.kind is PathKind.INDEX:
        return [KeyRange()]
    low, high = forecast.row_ids(connection, table)
    if low is None:
        return []
    edges = sorted({low + (high + 1 - low) * i // pieces for i in range(pieces)} | {high + 1})
    return [KeyRange(start=str(a), end=str(b)) for a, b in pairwise(edges)]


def _finds_nothing(connection: Connection, target: Target) -> bool:
    """Where a reader delays no writer: has nothing expired in this small database?"""
    if not session.has_log(connection) or not target.fits_one_scan(session.file_bytes(connection)):
        return False
    name = quote(target.declared.table.name.name)
    return connection.exec_driver_sql(f"SELECT 1 FROM {name} WHERE {target.condition.sql} LIMIT 1").first() is None
