"""Ranges of the key that together hold every row there is now: a job's tasks.

No row is read for it but the first and the last of a stretch that is cut. Between them bounds are reckoned, which need
not be keys that exist; how many rows lie between two bounds the server guesses from its index. The heaviest stretch is
cut again, so that gaps and outliers do no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection

from lapse.engines.mysql import keys, paths, points
from lapse.engines.mysql.keys import INCLUSIVE, Form, Key, Part, Walk
from lapse.engines.mysql.names import quote, source
from lapse.model.job import KeyRange
from lapse.model.table import TableName

MIN_CUTS, CUTS_PER_PIECE = 16, 4
ROUNDS = 8
"""As often a stretch is cut at most: a table is read in so many more places at worst."""
UNEVEN = 2.0
"""A stretch with this many times the rows of an even share is cut again."""
COUNTED_PAGES = 15
"""InnoDB counts the rows on about ten pages. What it guesses of more it doubles, to be on the safe side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """The rows from `start` up to, but not including, `end`; None is the end of the table.

    Both name the first columns of a key. `rows` is the server's guess. What is `solid` cannot be cut.
    """

    start: Key | None = None
    end: Key | None = None
    rows: int = 0
    solid: bool = False

    def where(self, walk: Walk) -> list[str]:
        lower = [] if self.start is None else [walk.after(self.start, inclusive=True)]
        return lower if self.end is None else [*lower, walk.until(self.end)]


def ranges(connection: Connection, table: TableName, walk: Walk, pieces: int) -> list[KeyRange]:
    """The last range ends at the last key there is, so rows that come later do not keep the job going."""
    cutter = Cutter(connection, table, walk)
    last = cutter.last(Stretch())
    if last is None:
        return []
    starts = [each.start for each in cutter.stretches(pieces)]
    bounds = [keys.encode(start) for start in starts if start is not None]
    edges = [None, *bounds, INCLUSIVE + keys.encode(last)]
    return [KeyRange(start=start, end=end) for start, end in pairwise(edges)]


class Cutter:
    """Finds out where a table can be cut, from its index and the server's guesses."""

    def __init__(self, connection: Connection, table: TableName, walk: Walk) -> None:
        self._connection = connection
        self._source = source(table)
        self._walk = walk
        rows_per_page = paths.statistic(connection, table, "TABLE_ROWS * @@innodb_page_size / DATA_LENGTH")
        self._counted_rows = COUNTED_PAGES * float(rows_per_page or 0)

    def stretches(self, pieces: int) -> list[Stretch]:
        """At most `pieces` stretches of about as many rows each, in the order of the index: together, the table."""
        found = [self._weighed(None, None)]
        for _ in range(ROUNDS if pieces > 1 else 0):
            heaviest = max((each for each in found if not each.solid), key=lambda each: each.rows, default=None)
            share = sum(each.rows for each in found) / pieces
            if heaviest is None or (len(found) >= pieces and heaviest.rows <= UNEVEN * share):
                break
            at = found.index(heaviest)
            found[at : at + 1] = self._cut(heaviest, min(max(pieces, MIN_CUTS), CUTS_PER_PIECE * pieces))
        return _merged(found, pieces)

    def first(self, stretch: Stretch) -> Key | None:
        return self._end(stretch, self._walk.order)

    def last(self, stretch: Stretch) -> Key | None:
        return self._end(stretch, self._walk.backwards)

    def _end(self, stretch: Stretch, order: str) -> Key | None:
        row = self._connection.exec_driver_sql(
            f"SELECT {self._walk.selected} {self._from(stretch)} ORDER BY {order} LIMIT 1"
        ).first()
        return None if row is None else tuple(row)

    def _from(self, stretch: Stretch) -> str:
        where = " AND ".join(stretch.where(self._walk))
        return f"FROM {self._source} FORCE INDEX ({quote(self._walk.index)}){' WHERE ' if where else ''}{where}"

    def _weighed(self, start: Key | None, end: Key | None) -> Stretch:
        stretch = Stretch(start=start, end=end)
        plan = self._connection.exec_driver_sql(f"EXPLAIN SELECT 1 {self._from(stretch)}").mappings().one()
        rows = int(plan["rows"] or 0)
        return replace(stretch, rows=rows // 2 if rows > self._counted_rows else rows)

    def _cut(self, stretch: Stretch, count: int) -> list[Stretch]:
        bounds = self._bounds(self.first(stretch), self.last(stretch), count)
        if not bounds:
            return [replace(stretch, solid=True)]
        return [self._weighed(start, end) for start, end in pairwise([stretch.start, *bounds, stretch.end])]

    def _bounds(self, first: Key | None, last: Key | None, count: int) -> list[Key]:
        """After `first` and up to `last`, in the order of the index: other values of the first column that differs."""
        if first is None or last is None:
            return []
        at = next((at for at, pair in enumerate(zip(first, last, strict=True)) if pair[0] != pair[1]), None)
        # The server finds ordinals by equality only, and columns after them not at all.
        if at is None or any(part.form is Form.ORDINAL for part in self._walk.parts[: at + 1]):
            return []
        part = self._walk.parts[at]
        values = points.between(part, first[at], last[at], count)
        if part.form in points.PROPOSALS:
            values = self._sorted(part, first[at], last[at], values)
        return [(*first[:at], value) for value in values]

    def _sorted(self, part: Part, first: Any, last: Any, values: Sequence[str]) -> list[str]:
        """Those that lie after `first` and up to `last`, in the column's own order, equal ones once."""
        if not values:
            return []
        choices = " UNION ALL ".join(f"SELECT {_typed(part, value)} AS c, '{value}' AS v" for value in values)
        after, until, order = ("<", ">=", "DESC") if part.descending else (">", "<=", "ASC")
        rows = self._connection.exec_driver_sql(
            f"SELECT min(v) FROM ({choices}) AS candidates"
            f" WHERE c {after} {_typed(part, first)} AND c {until} {_typed(part, last)} GROUP BY c ORDER BY c {order}"
        )
        return [str(row[0]) for row in rows]


def _typed(part: Part, value: Any) -> str:
    text = part.literal(value)
    return f"CAST({text} AS UUID)" if part.form is Form.UUID else text


def _merged(found: Sequence[Stretch], pieces: int) -> list[Stretch]:
    """Neighbours put together where they share a piece of the table."""
    total = max(sum(each.rows for each in found), 1)
    merged: dict[int, Stretch] = {}
    passed = 0
    for each in found:
        piece = min(passed * pieces // total, pieces - 1)
        before = merged.get(piece)
        merged[piece] = each if before is None else replace(before, end=each.end, rows=before.rows + each.rows)
        passed += each.rows
    return list(merged.values())
