"""Which way leads to the expired rows, and how many rows there are."""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.sqlite import forecast
from lapse.engines.sqlite.condition import Condition
from lapse.engines.sqlite.names import quote
from lapse.model.job import Path, PathKind
from lapse.model.table import Table

INDEX_PATH_SHARE = 0.05
"""The index path pays while at most this share of the rows has expired."""


def choose(connection: Connection, table: Table, found: Condition) -> Path:
    order = "primary key order" if table.key else "row id order"
    index = table.index_on(found.column) if found.column and not table.key else None
    if index is None:
        reason = "no index on the expiry column" if found.column else "expiry is an expression"
        return Path(kind=PathKind.PHYSICAL, evidence=f"{order}: {reason}")
    enough = max(int(estimate_rows(connection, table) * INDEX_PATH_SHARE), 1_000)
    column = quote(found.column or "")
    expired = connection.exec_driver_sql(
        f"SELECT count(*) FROM (SELECT {column} FROM {quote(table.name.name)} INDEXED BY {quote(index.name)}"
        f" WHERE {found.bound} AND {column} IS NOT NULL ORDER BY {column} LIMIT {4 * enough}) WHERE {found.expired}"
    ).scalar_one()
    if expired > enough:
        return Path(kind=PathKind.PHYSICAL, evidence=f"{order}: more than {enough} rows have expired")
    evidence = f"index {index.name}: about {expired} rows have expired"
    return Path(kind=PathKind.INDEX, index=index.name, evidence=evidence)


def estimate_rows(connection: Connection, table: Table) -> int:
    name = quote(table.name.name)
    if table.key:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one())
    low, high = forecast.row_ids(connection, table)
    return 0 if low is None else high - low + 1
