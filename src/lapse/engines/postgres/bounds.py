"""Partition bounds: read from the text that the server writes, and written again from what was read.

A bound that was stored is never pasted into a statement. It is read by a grammar that knows constants and nothing else,
and each constant is quoted anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lapse.engines.postgres.names import literal
from lapse.errors import Unsupported

UNBOUNDED_LOW, UNBOUNDED_HIGH = "MINVALUE", "MAXVALUE"

_VALUE = r"""(?:E'(?:[^'\\]|''|\\\\)*'|'(?:[^']|'')*'|-?\d+(?:\.\d+)?|MINVALUE|MAXVALUE|NULL|true|false)"""
_VALUES = rf"{_VALUE}(?:, {_VALUE})*"
_RANGE = re.compile(rf"FOR VALUES FROM \((?P<low>{_VALUES})\) TO \((?P<high>{_VALUES})\)", re.DOTALL)
_LIST = re.compile(rf"FOR VALUES IN \((?P<values>{_VALUES})\)", re.DOTALL)
_HASH = re.compile(r"FOR VALUES WITH \(modulus (?P<modulus>\d+), remainder (?P<remainder>\d+)\)")
_EACH = re.compile(_VALUE, re.DOTALL)
_WORDS = frozenset({UNBOUNDED_LOW, UNBOUNDED_HIGH, "NULL", "true", "false"})


@dataclass(frozen=True, slots=True)
class Value:
    """A constant: a `word` such as MAXVALUE, or `text` that the column's type reads."""

    text: str
    word: bool = False

    def sql(self) -> str:
        return self.text if self.word else literal(self.text).strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """`written` is SQL made of constants alone. `low` and `high` are a range's, one value per column of the key."""

    written: str
    low: tuple[Value, ...] = ()
    high: tuple[Value, ...] = ()


def read(text: str) -> Bound:
    """Raises Unsupported for what is not a bound as PostgreSQL writes it."""
    if text == "DEFAULT":
        return Bound(written=text)
    if found := _RANGE.fullmatch(text):
        low, high = _values(found["low"]), _values(found["high"])
        return Bound(written=f"FOR VALUES FROM ({_written(low)}) TO ({_written(high)})", low=low, high=high)
    if found := _LIST.fullmatch(text):
        return Bound(written=f"FOR VALUES IN ({_written(_values(found['values']))})")
    if found := _HASH.fullmatch(text):
        return Bound(written=f"FOR VALUES WITH (MODULUS {found['modulus']}, REMAINDER {found['remainder']})")
    raise Unsupported(f"this is no partition bound: {text}")


def _values(text: str) -> tuple[Value, ...]:
    return tuple(_value(found) for found in _EACH.findall(text))


def _value(text: str) -> Value:
    if text in _WORDS:
        return Value(text, word=True)
    if text.startswith("E'"):
        return Value(text[2:-1].replace("''", "'").replace("\\\\", "\\"))
    return Value(text[1:-1].replace("''", "'") if text.startswith("'") else text)


def _written(values: tuple[Value, ...]) -> str:
    return ", ".join(value.sql() for value in values)
