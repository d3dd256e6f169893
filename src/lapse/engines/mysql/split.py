"""Ranges of the key that together hold every row there is now: a job's tasks.

A table is cut where its key begins with a whole number or a moment; any other is one range. No row is read for it but
the first and the last of a stretch that is cut. Between them bounds are computed, which need not be keys that exist.
Where a number stands for a row nearly every time, that is all. Elsewhere the server guesses from its index how many
rows lie between two bounds, and the heaviest stretch is cut again, so that gaps and outliers do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection

from lapse.engines.base import Footprint, Target
from lapse.engines.mysql import keys, paths
from lapse.engines.mysql.keys import INCLUSIVE, Form, Key, Walk
from lapse.engines.mysql.names import source
from lapse.engines.mysql.replicas import Reader
from lapse.model.expression import Null
from lapse.model.job import KeyRange, PathKind
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

    Both name the first column of a key. `rows` is the server's guess. What is `solid` cannot be cut.
    """

    start: Key | None = None
    end: Key | None = None
    rows: int = 0
    solid: bool = False

    def where(self, walk: Walk) -> list[str]:
        lower = [] if self.start is None else [walk.after(self.start, inclusive=True)]
        return lower if self.end is None else [*lower, walk.until(self.end)]


def ranges(
    connection: Connection,
    target: Target,
    pieces: int,
    walk: Callable[[], Walk],
    size: Callable[[], Footprint],
    reader: Reader | None = None,
    *,
    looks: bool = True,
) -> list[KeyRange]:
    """`walk` is the way along the table's key and `size` what the server thinks of it, asked for only where they are
    needed; `reader` looks on a replica. What is not looked into is one range without an end: its first batch finds
    one."""
    if isinstance(target.declared.expression, Null):
        return []
    if target.path.kind is not PathKind.PHYSICAL or not looks:
        return [KeyRange()]
    if _finds_nothing(connection, target, size().bytes, reader):
        return []
    return key_ranges(connection, target.declared.table.name, walk(), pieces, rows=size().rows)


def _finds_nothing(connection: Connection, target: Target, size: int | None, reader: Reader | None) -> bool:
    """Has nothing expired in this small table? Read without a lock."""
    if size is None or not target.fits_one_scan(size):
        return False
    sql = f"SELECT 1 FROM {source(target.declared.table.name)} WHERE {target.condition.sql} LIMIT 1"

    def look(session: Connection) -> bool:
        return session.exec_driver_sql(sql).first() is None

    return look(connection) if reader is None else reader.ask(connection, look)


def key_ranges(
    connection: Connection, table: TableName, walk: Walk, pieces: int, rows: int | None = None
) -> list[KeyRange]:
    """The last range ends at the last key there is, so rows that come later do not keep the job going. The server
    thinks that there are so many `rows`."""
    cutter = Cutter(connection, table, walk)
    last = cutter.last(Stretch())
    if last is None:
        return []
    starts = cutter.even_starts(last, pieces, rows or 0)
    if starts is None:
        starts = [each.start for each in cutter.stretches(pieces) if each.start is not None]
    bounds = [keys.encode(start) for start in starts]
    edges = [None, *bounds, INCLUSIVE + keys.encode(last)]
    return [KeyRange(start=start, end=end) for start, end in pairwise(edges)]


class Cutter:
    """Finds out where a table can be cut, from its index and the server's guesses."""

    def __init__(self, connection: Connection, table: TableName, walk: Walk) -> None:
        self._connection = connection
        self._source = source(table)
        self._table = table
        self._walk = walk

    def even_starts(self, last: Key, pieces: int, rows: int) -> list[Key] | None:
        """Where pieces begin after the first one, if the key is a number and most of its numbers are rows: then no
        piece can hold many more than its share, and nothing has to be guessed. None where that is not so."""
        form, *more = [part.form for part in self._walk.parts]
        if pieces == 1 or more or form is not Form.NUMBER:
            return None
        first = self._end(Stretch(), self._walk.order)
        if first is None or UNEVEN * rows < abs(int(last[0]) - int(first[0])):
            return None
        return [(bound,) for bound in between(form, first[0], last[0], pieces)[:-1]]

    def stretches(self, pieces: int) -> list[Stretch]:
        """At most `pieces` stretches of about as many rows each, in the order of the index: together, the table."""
        if pieces == 1:
            return [Stretch()]
        found = [self._weighed(None, None)]
        for _ in range(ROUNDS):
            heaviest = max((each for each in found if not each.solid), key=lambda each: each.rows, default=None)
            share = sum(each.rows for each in found) / pieces
            if heaviest is None or (len(found) >= pieces and heaviest.rows <= UNEVEN * share):
                break
            at = found.index(heaviest)
            found[at : at + 1] = self._cut(heaviest, min(max(pieces, MIN_CUTS), CUTS_PER_PIECE * pieces))
        return _merged(found, pieces)

    def last(self, stretch: Stretch) -> Key | None:
        return self._end(stretch, self._walk.backwards)

    def _end(self, stretch: Stretch, order: str) -> Key | None:
        row = self._connection.exec_driver_sql(
            f"SELECT {self._walk.selected} {self._from(stretch, 'FORCE')} ORDER BY {order} LIMIT 1"
        ).first()
        return None if row is None else tuple(row)

    def _from(self, stretch: Stretch, hint: str) -> str:
        where = " AND ".join(stretch.where(self._walk))
        return f"FROM {self._source}{self._walk.hint(hint)}{' WHERE ' if where else ''}{where}"

    def _weighed(self, start: Key | None, end: Key | None) -> Stretch:
        stretch = Stretch(start=start, end=end)
        # An index that is forced has no price on MySQL, which then guesses that one row is in it.
        sql = f"EXPLAIN FORMAT=TRADITIONAL SELECT 1 {self._from(stretch, 'USE')}"
        guess = self._connection.exec_driver_sql(sql).mappings().all()[0]
        if "estRows" in guess:
            return replace(stretch, rows=int(float(guess["estRows"])))
        rows = int(guess["rows"] or 0)
        return replace(stretch, rows=rows // 2 if rows > self._counted_rows else rows)

    @cached_property
    def _counted_rows(self) -> float:
        per_page = "TABLE_ROWS * @@innodb_page_size / DATA_LENGTH"
        (rows_per_page,) = paths.statistics(self._connection, self._table, per_page) or (None,)
        return COUNTED_PAGES * float(rows_per_page or 0)

    def _cut(self, stretch: Stretch, count: int) -> list[Stretch]:
        first, last = self._end(stretch, self._walk.order), self.last(stretch)
        bounds = [] if first is None or last is None else between(self._walk.parts[0].form, first[0], last[0], count)
        if not bounds:
            return [replace(stretch, solid=True)]
        edges = [stretch.start, *((bound,) for bound in bounds), stretch.end]
        return [self._weighed(start, end) for start, end in pairwise(edges)]


def between(form: Form, low: Any, high: Any, count: int) -> list[Any]:
    """About `count` values after `low` and up to `high`, in that direction; none for a column of another form."""
    if form is Form.NUMBER:
        steps = [int(low) + (int(high) - int(low)) * number // count for number in range(1, count + 1)]
        return [step for step in dict.fromkeys(steps) if step != int(low)]
    if form is Form.MOMENT:
        try:
            first, last = datetime.fromisoformat(low), datetime.fromisoformat(high)
        except ValueError:
            # The zero date, or a day that no calendar has.
            return []
        moments = [first + (last - first) * number / count for number in range(1, count + 1)]
        written = dict.fromkeys(moment.isoformat(" ", "microseconds")[: len(low)] for moment in moments)
        return [each for each in written if each != low]
    return []


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
