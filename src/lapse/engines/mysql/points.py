"""Values between two values of a column, reckoned: where a range of keys may be cut without reading any.

A value becomes a whole number of the same order, and a number between two of them becomes a value again. Text and UUIDs
have an order that only the server knows: for them these are proposals, which the server sorts.
"""

from __future__ import annotations

import re
import string
import struct
from ipaddress import ip_address
from typing import Any

from lapse.engines.mysql.keys import Form, Part

PROPOSALS = frozenset({Form.TEXT, Form.UUID})
"""Their points come in no order, and some may lie elsewhere."""
_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_WIDE = {"utf16": "utf-16-be", "ucs2": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
"""Character sets in which a letter is not one byte."""
_BEFORE_YEARS = 1900
_COUNTED_BYTES = 8
"""Of binary keys, after what they have in common."""
_UNITS = (10_000, 13, 32, 24, 60, 60, 1_000_000)
"""Of a moment, from years to microseconds; month and day may be zero."""
_SIZES = (8, 4, 4, 4, 12)
"""Hexadecimal digits of the groups of a UUID."""


def between(part: Part, low: Any, high: Any, count: int) -> list[Any]:
    """About `count` values after `low` and up to `high`, in that direction; none for types without arithmetic."""
    match part.form:
        case Form.NUMBER | Form.BITS:
            return _steps(int(low), int(high), count)
        case Form.YEAR:
            # Before the first year there is the value 0 only: other numbers would mean other years.
            return _steps(max(int(low), _BEFORE_YEARS), max(int(high), _BEFORE_YEARS), count)
        case Form.DECIMAL:
            scale = len(str(low).partition(".")[2])
            return [_decimal(number, scale) for number in _steps(_digits(low), _digits(high), count)]
        case Form.FLOAT:
            return [_float(number) for number in _steps(_float_rank(low), _float_rank(high), count)]
        case Form.BYTES:
            return _bytes(str(low), str(high), count)
        case Form.TEXT:
            return _texts(str(low), str(high), part.charset or "")
        case Form.MOMENT:
            return _moments(str(low), str(high), count)
        case Form.SPAN:
            return [_span(number) for number in _steps(_span_rank(low), _span_rank(high), count)]
        case Form.UUID:
            return [*_uuids(low, high, count, order=1), *_uuids(low, high, count, order=-1)]
        case Form.ADDRESS:
            first, last = ip_address(low), ip_address(high)
            return [str(type(first)(number)) for number in _steps(int(first), int(last), count)]
        case Form.ORDINAL:
            return []


def _steps(low: int, high: int, count: int) -> list[int]:
    steps = dict.fromkeys(low + (high - low) * number // count for number in range(1, count + 1))
    return [step for step in steps if step != low]


def _digits(value: str) -> int:
    return int(value.replace(".", ""))


def _decimal(number: int, scale: int) -> str:
    digits = f"{abs(number):0{scale + 1}}"
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{'-' if number < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"


def _float_rank(value: float) -> int:
    """Its bits: numbers of every size are spread as far as they are told apart."""
    rank = int(struct.unpack(">q", struct.pack(">d", abs(value)))[0])
    return -rank if value < 0 else rank


def _float(rank: int) -> float:
    size = float(struct.unpack(">d", struct.pack(">q", abs(rank)))[0])
    return -size if rank < 0 else size


def _bytes(low: str, high: str, count: int) -> list[str]:
    """In hexadecimal, as long as it takes to tell the two apart."""
    shared = next((at for at in range(0, len(low), 2) if low[at : at + 2] != high[at : at + 2]), len(low))
    width = shared + 2 * _COUNTED_BYTES
    first, last = (int(value[:width].ljust(width, "0"), 16) for value in (low, high))
    return [re.sub("(00)+$", "", f"{number:0{width}X}") for number in _steps(first, last, count)]


def _texts(low: str, high: str, charset: str) -> list[str]:
    """In hexadecimal: the beginning that both have in common, then each letter and digit."""
    encoding = _WIDE.get(charset, "ascii")
    size = len("0".encode(encoding)) * 2
    shared = 0
    while shared < len(low) and _same_letter(low[shared : shared + size], high[shared : shared + size], encoding):
        shared += size
    return [low[:shared] + character.encode(encoding).hex() for character in _CHARACTERS]


def _same_letter(one: str, other: str, encoding: str) -> bool:
    """Beyond ASCII a character may have several bytes, and must not be cut."""
    letter, second = (bytes.fromhex(each).decode(encoding, "replace") for each in (one, other))
    return letter.isascii() and letter.lower() == second.lower()


def _moments(low: str, high: str, count: int) -> list[str]:
    ranks = (_moment_rank(low), _moment_rank(high))
    found = dict.fromkeys(_moment(rank, len(low)) for rank in _steps(*ranks, count))
    # Not every rank is a day of the calendar: its neighbour may be outside.
    return [each for each in found if min(ranks) <= _moment_rank(each) <= max(ranks) and each != low]


def _moment_rank(text: str) -> int:
    rank = 0
    for unit, field in zip(_UNITS, _fields(text), strict=True):
        rank = rank * unit + field
    return rank


def _moment(rank: int, length: int) -> str:
    """A day that every month has, written as long as others in its column."""
    fields = []
    for unit in reversed(_UNITS):
        rank, field = divmod(rank, unit)
        fields.append(field)
    micros, second, minute, hour, day, month, year = fields
    date = f"{max(year, 1):04}-{max(month, 1):02}-{min(max(day, 1), 28):02}"
    return f"{date} {hour:02}:{minute:02}:{second:02}.{micros:06}"[:length]


def _fields(text: str) -> list[int]:
    numbers = [int(number) for number in re.findall(r"\d+", text.partition(".")[0])]
    return [*numbers, *[0] * (6 - len(numbers)), _micros(text)]


def _span_rank(text: str) -> int:
    hours, minutes, seconds = (int(field) for field in text.lstrip("-").partition(".")[0].split(":"))
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + _micros(text)
    return -micros if text.startswith("-") else micros


def _span(micros: int) -> str:
    seconds, fraction = divmod(abs(micros), 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
    return f"-{clock}" if micros < 0 else clock


def _micros(text: str) -> int:
    return int(text.partition(".")[2].ljust(6, "0"))


def _uuids(low: str, high: str, count: int, *, order: int) -> list[str]:
    """MariaDB sorts by the groups from the last to the first, and those of newer versions from the first to the last.

    The first group that differs is reckoned, the others stay: a version that no key has would sort elsewhere.
    """
    groups, last = low.split("-"), high.split("-")
    at = next((at for at in range(5)[::order] if groups[at] != last[at]), None)
    if at is None:
        return []
    steps = _steps(int(groups[at], 16), int(last[at], 16), count)
    return ["-".join([*groups[:at], f"{step:0{_SIZES[at]}x}", *groups[at + 1 :]]) for step in steps]
