"""Indexes that a table with TTL lacks."""

from __future__ import annotations

from lapse.engines.base import Advice, BoundPolicy
from lapse.engines.mysql.names import qualified, quote
from lapse.engines.mysql.paths import expiry_index
from lapse.model.policy import ColumnExpiry


def indexes(declared: BoundPolicy) -> list[Advice]:
    expiry, table = declared.policy.expiry, declared.table
    if not isinstance(expiry, ColumnExpiry) or expiry_index(table, expiry.column) or table.key[:1] == (expiry.column,):
        return []
    return [
        Advice(
            text=f"no index on {expiry.column}: each run reads the whole table; an index helps when few expire at once",
            # The server names it: a name that is free, and not too long.
            statement=f"ALTER TABLE {qualified(table.name)} ADD INDEX ({quote(expiry.column)});",
        )
    ]
