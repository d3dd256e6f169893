"""The condition of expired rows for queries that others write, such as those of an object-relational mapper.

It is written without a look at the database: from what the mapper knows about the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from typing import Any, cast
from uuid import uuid4

from sqlalchemy import Connection

from lapse.engines.mysql import condition as mysql
from lapse.engines.mysql.names import quote as quote_mysql
from lapse.engines.postgres import condition as postgres
from lapse.engines.postgres.names import quote as quote_postgres
from lapse.engines.sqlite import condition as sqlite
from lapse.engines.sqlite.names import column as quote_sqlite
from lapse.engines.values import BoundPolicy
from lapse.errors import Unsupported
from lapse.model.expression import ColumnRef
from lapse.model.policy import ColumnExpiry
from lapse.model.table import MANAGED_COLUMN, Column

_NO_CONNECTION = cast(Connection, None)
_TOKEN = f"lapse_{uuid4().hex}_"
"""Begins the names that stand for columns until these are written as the query names them."""
_MANAGED_TYPES = {"postgresql": "timestamp with time zone", "mysql": "datetime(6)", "sqlite": "text"}
BACKENDS = frozenset(_MANAGED_TYPES)


def expired_now(backend: str, declared: BoundPolicy, now: datetime, column_sql: Callable[[str], str]) -> str:
    """SQL that is true for expired rows, by the server's clock. SQLite has none and is told what time it is, and so are
    MariaDB and MySQL where times are of a zone: they may not know it.

    `backend` is SQLAlchemy's name for it; `column_sql` writes a column in the query. Types of columns are as the engine
    writes them, in lower case.
    """
    if backend not in BACKENDS:
        raise Unsupported(f"Lapse has no engine for {backend}")
    if declared.policy.keep_last is not None:
        raise Unsupported(
            "whether a row is one of those that ttl_keep_last keeps cannot be asked inside of another query",
            hint=f"select from the view of live rows: ttl_hide_expired = 'view' makes {declared.table.name}_live",
        )
    if declared.table.column(MANAGED_COLUMN) is None:
        managed = Column(name=MANAGED_COLUMN, type=_MANAGED_TYPES[backend])
        declared = replace(declared, table=replace(declared.table, columns=(*declared.table.columns, managed)))
    tokens = {
        name: name if name == MANAGED_COLUMN else f"{_TOKEN}{number}"
        for number, name in enumerate(declared.columns_read)
    }
    marked = _renamed(declared, tokens)
    if backend == "postgresql":
        sql, quote = postgres.expired_now(marked), quote_postgres
    elif backend == "mysql":
        sql, quote = _mysql(marked, now), quote_mysql
    else:
        sql, quote = sqlite.at(None, marked, now).sql, quote_sqlite
    for name, token in tokens.items():
        sql = sql.replace(quote(token), column_sql(name))
    return f"({sql})"


def _mysql(declared: BoundPolicy, now: datetime) -> str:
    policy = declared.policy
    if policy.zone != "UTC" and isinstance(policy.expiry, ColumnExpiry) and mysql.reads_wall_clock(declared):
        return mysql.at(_NO_CONNECTION, declared, now).sql
    return mysql.expired_sql(declared)


def _renamed(declared: BoundPolicy, tokens: dict[str, str]) -> BoundPolicy:
    columns = tuple(replace(column, name=tokens.get(column.name, column.name)) for column in declared.table.columns)
    policy = declared.policy
    if isinstance(policy.expiry, ColumnExpiry) and policy.column is not None:
        policy = replace(policy, column=tokens[policy.column])
    return replace(
        declared,
        table=replace(declared.table, columns=columns),
        policy=policy,
        expression=_renamed_tree(declared.expression, tokens),
        filter=_renamed_tree(declared.filter, tokens),
    )


def _renamed_tree(node: Any, tokens: dict[str, str]) -> Any:
    if isinstance(node, ColumnRef):
        return ColumnRef(tokens[node.name])
    if isinstance(node, tuple):
        return tuple(_renamed_tree(each, tokens) for each in node)
    if is_dataclass(node) and not isinstance(node, type):
        return replace(node, **{each.name: _renamed_tree(getattr(node, each.name), tokens) for each in fields(node)})
    return node
