"""SQLite's columns: every cell has a type of its own, whatever was declared.

Cells are Python's int, float, str and bytes. A column is kept as the type that its affinity prefers; a cell of another
type is odd, and its text is an SQL literal. Text that is not valid UTF-8 comes with surrogate escapes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from lapse.archive.loading import arrow
from lapse.archive.storage import Cell, Odd, Storage
from lapse.errors import LapseError

_INFINITY = "9.0e+999"
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,18})")
_REAL = re.compile(r"-?(?:\d+\.\d+(?:e[+-]\d+)?|\d+e[+-]\d+|9\.0e\+999)")
_ESCAPED_TEXT = re.compile(r"CAST\(X'([0-9a-f]*)' AS TEXT\)")
_LARGEST = 2**63


@dataclass(frozen=True, kw_only=True)
class PlainCells(Storage):
    """Cells of one Python type as one Arrow type; all others are odd."""

    kind: type[Any]
    name: str
    note: str | None = None

    @property
    def type(self) -> Any:
        return getattr(arrow(), self.name)()

    def encode(self, cells: Any) -> tuple[Any, Odd]:
        found = list(cells)
        odd = {row: literal(cell) for row, cell in enumerate(found) if cell is not None and not self._holds(cell)}
        kept = [None if row in odd else cell for row, cell in enumerate(found)] if odd else found
        return arrow().array(kept, self.type), odd

    def decode(self, stored: Any) -> list[Cell]:
        return list(stored.to_pylist())

    def odd(self, text: str) -> Cell:
        return value(text)

    def _holds(self, cell: Any) -> bool:
        return type(cell) is self.kind and (self.kind is not str or _is_unicode(cell))


@dataclass(frozen=True, kw_only=True)
class Numeric(PlainCells):
    """A column of numeric affinity, such as DATETIME or DECIMAL: numbers and text, told apart by how they look.

    A number's text is a number; SQLite itself turns text that looks like one into one in such a column.
    """

    def encode(self, cells: Any) -> tuple[Any, Odd]:
        found = list(cells)
        plain = [_plain(cell) for cell in found]
        odd = {row: literal(cell) for row, cell in enumerate(found) if cell is not None and plain[row] is None}
        return arrow().array(plain, self.type), odd

    def decode(self, stored: Any) -> list[Cell]:
        return [None if text is None else _meant(text) for text in stored.to_pylist()]


def storage(type_name: str, made_of: tuple[str, ...] | None) -> Storage:
    """By SQLite's own rules for the affinity of a declared type."""
    declared = type_name.upper()
    if "INT" in declared:
        return PlainCells(kind=int, name="int64")
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return PlainCells(kind=str, name="string")
    if "BLOB" in declared or not declared.strip():
        return PlainCells(kind=bytes, name="binary")
    if any(word in declared for word in ("REAL", "FLOA", "DOUB")):
        return PlainCells(kind=float, name="float64")
    return Numeric(kind=str, name="string", note="numbers and text, as SQLite's affinity tells them apart")


def literal(cell: Cell) -> str:
    """The SQL literal of a value."""
    if isinstance(cell, bytes):
        return f"X'{cell.hex()}'"
    if isinstance(cell, str):
        if _is_unicode(cell):
            return "'" + cell.replace("'", "''") + "'"
        return f"CAST(X'{cell.encode(errors='surrogateescape').hex()}' AS TEXT)"
    return _number(cell) if isinstance(cell, int | float) else _unreadable(cell)


def value(text: str) -> Cell:
    """The value of an SQL literal that `literal` wrote."""
    if text.startswith("X'"):
        return bytes.fromhex(text[2:-1])
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if escaped := _ESCAPED_TEXT.fullmatch(text):
        return bytes.fromhex(escaped[1]).decode(errors="surrogateescape")
    found = _meant(text)
    return found if isinstance(found, int | float) else _unreadable(text)


def _unreadable(text: object) -> NoReturn:
    raise LapseError(f"{text!r} is not a value of SQLite")


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _number(cell: float) -> str:
    if isinstance(cell, float) and math.isinf(cell):
        return _INFINITY if cell > 0 else f"-{_INFINITY}"
    return repr(cell)


def _plain(cell: Cell) -> str | None:
    """A cell as text that says by itself what it is; None where it does not."""
    if cell is None or isinstance(cell, bytes) or (isinstance(cell, str) and not _is_unicode(cell)):
        return None
    text = cell if isinstance(cell, str) else _number(cell)
    meant = _meant(text)
    return text if type(meant) is type(cell) and repr(meant) == repr(cell) else None


def _meant(text: str) -> Cell:
    if _INTEGER.fullmatch(text) and -_LARGEST <= int(text) < _LARGEST:
        return int(text)
    return float(text) if _REAL.fullmatch(text) else text
