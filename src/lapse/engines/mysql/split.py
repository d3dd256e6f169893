"""Ranges of the key that together hold every row there is now: a job's tasks.

A bound need not be a key that exists. Whole numbers are cut by arithmetic, text and bytes by first characters that the
server puts into the column's own order; keys of other types make one range.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection

from lapse.engines.mysql import keys
from lapse.engines.mysql.keys import INCLUSIVE, Form, Key, Walk
from lapse.engines.mysql.names import quote
from lapse.model.job import KeyRange

_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_BYTE_STEP = 4


def ranges(connection: Connection, source: str, walk: Walk, pieces: int) -> list[KeyRange]:
    """The last range ends at the last key there is, so rows that come later do not keep the job going."""
    first, last = _end(connection, source, walk, walk.order), _end(connection, source, walk, walk.backwards)
    if first is None or last is None:
        return []
    bounds = [keys.encode([bound]) for bound in _bounds(connection, walk, first, last, pieces)] if pieces > 1 else []
    edges = [None, *bounds, INCLUSIVE + keys.encode(last)]
    return [KeyRange(start=start, end=end) for start, end in pairwise(edges)]


def _end(connection: Connection, source: str, walk: Walk, order: str) -> Key | None:
    row = connection.exec_driver_sql(
        f"SELECT {walk.selected} FROM {source} FORCE INDEX ({quote(walk.index)}) ORDER BY {order} LIMIT 1"
    ).first()
    return None if row is None else tuple(row)


def _bounds(connection: Connection, walk: Walk, first: Key, last: Key, pieces: int) -> list[Any]:
    """Values of the key's first column, in index order, strictly between the first and the last key."""
    part = walk.parts[0]
    if part.form is Form.NUMBER:
        low, high = sorted((int(first[0]), int(last[0])))
        steps = {low + (high - low) * number // pieces for number in range(1, pieces)} - {low}
        return sorted(steps, reverse=part.descending)
    if part.form is Form.BYTES:
        return _spread(
            _between(connection, walk, first, last, [f"{byte:02X}" for byte in range(0, 256, _BYTE_STEP)]), pieces
        )
    if part.form is Form.TEXT:
        found = _between(connection, walk, first, last, [_hex(walk, letter) for letter in _CHARACTERS])
        return _spread(found, pieces)
    return []


def _between(connection: Connection, walk: Walk, first: Key, last: Key, candidates: Sequence[str]) -> list[str]:
    """The candidates that lie between two keys, in the column's order, equal ones once."""
    part = walk.parts[0]
    choices = " UNION ALL ".join(f"SELECT {part.literal(value)} AS c, '{value}' AS v" for value in candidates)
    low, high = sorted((0, 1), reverse=part.descending)
    ends = (part.literal(first[0]), part.literal(last[0]))
    rows = connection.exec_driver_sql(
        f"SELECT min(v) FROM ({choices}) AS candidates WHERE c > {ends[low]} AND c < {ends[high]}"
        f" GROUP BY c ORDER BY c {'DESC' if part.descending else 'ASC'}"
    )
    return [str(row[0]) for row in rows]


def _hex(walk: Walk, letter: str) -> str:
    charset = walk.parts[0].charset or "utf8mb4"
    width = {"utf16": "00", "ucs2": "00", "utf32": "000000"}.get(charset, "")
    if charset == "utf16le":
        return f"{ord(letter):02X}00"
    return f"{width}{ord(letter):02X}"


def _spread(bounds: list[str], pieces: int) -> list[str]:
    """At most `pieces - 1` of the bounds, evenly."""
    if len(bounds) < pieces:
        return bounds
    return [bounds[len(bounds) * number // pieces] for number in range(1, pieces)]
