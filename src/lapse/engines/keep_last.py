"""`ttl_keep_last` as a term of the condition: true for rows beyond the last ones of their group.

A row may go if it is older than the N-th last of its group, found by an index from the group's end: N entries are read
for each row that has expired, whatever the size of the group. What cannot be compared stays: a row with NULL in one of
the columns, and every row of a group that has fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lapse.engines.values import BoundPolicy
from lapse.errors import Drift, Unsupported
from lapse.model.table import Index, Table, TableKind

Write = Callable[[str], str]
Compare = Callable[[str, str], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """`order` begins with the column of ORDER BY; what is left of the key tells rows with the same value apart."""

    table: Table
    rows: int
    by: tuple[str, ...]
    order: tuple[str, ...]

    @property
    def index(self) -> Index | None:
        """One that leads straight to the last row of a group."""
        groups, columns = len(self.by), len(self.by) + len(self.order)
        for index in self.table.indexes:
            is_led_by = set(index.columns[:groups]) == set(self.by) and index.columns[groups:columns] == self.order
            if is_led_by and index.ascends and not index.partial:
                return index
        return None

    @property
    def index_columns(self) -> tuple[str, ...]:
        return (*self.by, *self.order)


def kept(declared: BoundPolicy) -> Kept | None:
    """Raises Unsupported where the table cannot keep the last rows of its groups, but for a missing index."""
    keep, table = declared.policy.keep_last, declared.table
    if keep is None:
        return None
    if table.kind is TableKind.PARTITIONED or table.name.partition is not None:
        raise Unsupported(
            f"table {table.name} is partitioned, and ttl_keep_last works on plain tables alone: a job deletes from one"
            " partition, and a group may be in many"
        )
    key = table.primary_key or table.key
    if not key:
        raise Unsupported(f"table {table.name} has no primary key, which tells rows of one {keep.order} apart")
    by = tuple(_column(table, name) for name in keep.by)
    order = tuple(dict.fromkeys((_column(table, keep.order), *(name for name in key if name not in by))))
    return Kept(table=table, rows=keep.rows, by=by, order=order)


def missing_index(kept: Kept, statement: str) -> Unsupported:
    return Unsupported(
        f"table {kept.table.name} has no index by which ttl_keep_last finds the last rows of a group: it needs one on"
        f" ({', '.join(kept.index_columns)}), ascending and for all rows",
        hint=statement,
    )


def surplus(kept: Kept, *, source: str, quote: Write, equal: Compare, less: Compare) -> str:
    """SQL that is true for rows beyond the last ones, wherever the columns of a row can be named without its table."""
    # Names of its own, so that the columns of the row are not taken for those that it is compared with.
    prefix = "lapse_last"
    while any(name.lower().startswith(prefix) for name in kept.index_columns):
        prefix += "_"
    own = {name: quote(f"{prefix}_{number}") for number, name in enumerate(kept.index_columns)}
    columns = ", ".join(f"{quote(name)} AS {own[name]}" for name in kept.index_columns)
    terms = [equal(own[name], quote(name)) for name in kept.by]
    terms.append(f"{own[kept.order[0]]} IS NOT NULL")
    order = ", ".join(own[name] for name in kept.order)
    nth = (
        f"(SELECT {order} FROM (SELECT {columns} FROM {source}) AS {quote(prefix)}"
        f" WHERE {' AND '.join(terms)} ORDER BY {descending(kept, lambda name: own[name])}"
        f" LIMIT 1 OFFSET {kept.rows - 1})"
    )
    return less(f"({', '.join(quote(name) for name in kept.order)})", nth)


def lasting(kept: Kept, *, row: str, table: str, quote: Write, equal: Compare) -> str:
    """A query for the last rows of the group of `row`, to be locked."""
    terms = [equal(f"lapse_last.{quote(name)}", f"{row}.{quote(name)}") for name in kept.by]
    terms.append(f"lapse_last.{quote(kept.order[0])} IS NOT NULL")
    return (
        f"SELECT {', '.join(f'lapse_last.{quote(name)}' for name in kept.order)} FROM {table}"
        f" WHERE {' AND '.join(terms)} ORDER BY {descending(kept, lambda name: f'lapse_last.{quote(name)}')}"
    )


def descending(kept: Kept, write: Write) -> str:
    """The groups' columns are there for MySQL, which does not see that an index in this order needs no sort."""
    return ", ".join(f"{write(name)} DESC" for name in (*_in_index_order(kept), *kept.order))


def _in_index_order(kept: Kept) -> tuple[str, ...]:
    index = kept.index
    return kept.by if index is None else tuple(name for name in index.columns[: len(kept.by)] if name is not None)


def _column(table: Table, name: str) -> str:
    found = table.column(name)
    if found is None:
        raise Drift(f"table {table.name} has no column {name}, which its TTL policy reads")
    return found.name
