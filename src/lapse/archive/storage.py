"""How the values of a column are kept in a file: as a native type of Parquet where there is one, exactly in any case.

A database hands over *cells*: each value in the text form of the database (bytes for binary columns of MariaDB and
MySQL, Python's own types for SQLite). A native type may not hold every value of a column: `infinity`, a zero date,
`NaN` in a numeric. Such cells are *odd*: NULL in their column, and their text is in the file's column `lapse_exact`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lapse.archive.loading import arrow

Cell = str | bytes | int | float | None
Odd = dict[int, str]
"""Cells that the native type cannot hold: their text, by row."""

_DAY = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"


class Storage(ABC):
    """`note` says why a column is kept as text; it is None where the type of the file is that of the database."""

    note: str | None = None

    @property
    @abstractmethod
    def type(self) -> Any:
        """The Arrow type."""

    @abstractmethod
    def encode(self, cells: Any) -> tuple[Any, Odd]:
        """Cells, a sequence or an Arrow array of texts or bytes, as an array of `type`."""

    @abstractmethod
    def decode(self, stored: Any) -> list[Cell]:
        """What `encode` was given; None for odd cells."""

    def odd(self, text: str) -> Cell:
        """The cell that an odd text means."""
        return text


@dataclass(frozen=True, kw_only=True)
class TextStorage(Storage):
    """Text is kept as it is. With a `note` it is the text form of something else, complete and unambiguous."""

    note: str | None = None

    @property
    def type(self) -> Any:
        return arrow().string()

    def encode(self, cells: Any) -> tuple[Any, Odd]:
        return texts(cells), {}

    def decode(self, stored: Any) -> list[Cell]:
        return list(stored.to_pylist())


@dataclass(frozen=True, kw_only=True)
class BinaryStorage(Storage):
    """Bytes; `escaped` where the database writes them as `\\x` and hexadecimal digits."""

    escaped: bool = False

    @property
    def type(self) -> Any:
        return arrow().binary()

    def encode(self, cells: Any) -> tuple[Any, Odd]:
        if self.escaped:
            cells = [None if cell is None else bytes.fromhex(cell[2:]) for cell in texts(cells).to_pylist()]
        return (cells if isinstance(cells, arrow().Array) else arrow().array(cells, self.type)), {}

    def decode(self, stored: Any) -> list[Cell]:
        values = stored.to_pylist()
        return [None if value is None else "\\x" + value.hex() for value in values] if self.escaped else list(values)


def _unchanged(found: Any) -> Any:
    return found


def _as_text(stored: Any) -> list[Cell]:
    return list(stored.cast(arrow().string()).to_pylist())


@dataclass(frozen=True, kw_only=True)
class Parsed(Storage):
    """Text that Arrow reads as its type `name`. Texts that `pattern` does not match are surely not of it."""

    name: str
    arguments: tuple[Any, ...] = ()
    pattern: str | None = None
    prepare: Callable[[Any], Any] = _unchanged
    render: Callable[[Any], list[Cell]] = _as_text

    @property
    def type(self) -> Any:
        return getattr(arrow(), self.name)(*self.arguments)

    def encode(self, cells: Any) -> tuple[Any, Odd]:
        found = texts(cells)
        try:
            return self._parse(found), {}
        except arrow().ArrowInvalid:
            return self._parse_some(found)

    def decode(self, stored: Any) -> list[Cell]:
        return self.render(stored)

    def _parse(self, found: Any) -> Any:
        return self.prepare(found).cast(self.type)

    def _parse_some(self, found: Any) -> tuple[Any, Odd]:
        compute, odd = arrow("compute"), {}
        if self.pattern is not None:
            fits = compute.fill_null(compute.match_substring_regex(found, self.pattern), True)
            rows = compute.indices_nonzero(compute.invert(fits)).to_pylist()
            odd = dict(zip(rows, found.take(arrow().array(rows, "int64")).to_pylist(), strict=True))
            found = compute.if_else(fits, found, None)
        odd |= self._unparsable(found, 0)
        keep = arrow().array([row not in odd for row in range(len(found))])
        return self._parse(compute.if_else(keep, found, None)), odd

    def _unparsable(self, found: Any, first: int) -> Odd:
        """By halves: a few bad cells among many good ones are found in few steps."""
        try:
            self._parse(found)
            return {}
        except arrow().ArrowInvalid:
            if len(found) == 1:
                return {first: found[0].as_py()}
        half = len(found) // 2
        return self._unparsable(found.slice(0, half), first) | self._unparsable(found.slice(half), first + half)


def texts(cells: Any) -> Any:
    """Cells as an Arrow array of text."""
    library = arrow()
    if isinstance(cells, library.ChunkedArray):
        cells = cells.combine_chunks()
    return cells if isinstance(cells, library.Array) else library.array(cells, library.string())


def integer(name: str, *, digits: int = 0) -> Parsed:
    """`digits`: texts are filled up with zeros, as those of a YEAR are."""

    def render(stored: Any) -> list[Cell]:
        return [None if value is None else f"{value:0{digits}d}" for value in stored.to_pylist()]

    return Parsed(name=name, render=render)


def decimal(precision: int, scale: int) -> Parsed:
    def render(stored: Any) -> list[Cell]:
        return [None if value is None else f"{value:f}" for value in stored.to_pylist()]

    return Parsed(name="decimal128", arguments=(precision, scale), render=render)


def boolean() -> Parsed:
    def prepare(found: Any) -> Any:
        return arrow("compute").equal(found, "t")

    def render(stored: Any) -> list[Cell]:
        return [None if value is None else "t" if value else "f" for value in stored.to_pylist()]

    return Parsed(name="bool_", prepare=prepare, render=render)


def date() -> Parsed:
    return Parsed(name="date32", pattern=f"^{_DAY}$")


def moment(*, zone: bool = False, suffix: str = "", digits: int | None = None) -> Parsed:
    """A date with a time of day. `zone`: an instant, whose text is in UTC and ends with `suffix`.

    `digits` is how many the fraction of a second always has; None where its zeros at the end are left out.
    """

    def prepare(found: Any) -> Any:
        found = found if suffix or not zone else arrow("compute").binary_join_element_wise(found, "Z", "")
        return found.cast(arrow().timestamp("us", "UTC" if zone else None))

    def render(stored: Any) -> list[Cell]:
        plain = stored.cast(arrow().timestamp("us")).cast(arrow().string()).to_pylist()
        return [None if text is None else _fraction(text, digits) + suffix for text in plain]

    pattern = rf"^{_DAY} \d\d:\d\d:\d\d(\.\d+)?" + suffix.replace("+", r"\+") + "$"
    arguments = ("us", "UTC") if zone else ("us",)
    return Parsed(name="timestamp", arguments=arguments, pattern=pattern, prepare=prepare, render=render)


def _fraction(text: str, digits: int | None) -> str:
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0") if digits is None else fraction[:digits]
    return f"{whole}.{fraction}" if fraction else whole
