"""An expiration expression in SQLite's SQL, with instants as milliseconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from lapse.engines.expression import ExpressionWriter, json_path, turned
from lapse.engines.sqlite import times
from lapse.engines.sqlite.names import column as column_name
from lapse.engines.sqlite.names import literal
from lapse.errors import Unsupported
from lapse.model import expression as ex
from lapse.model.expression import Node
from lapse.model.interval import DAY, MILLISECOND, Interval
from lapse.model.table import Column, TimeFormat

_CASTS = {"integer": "INTEGER", "float": "REAL", "text": "TEXT"}
_OPERATORS = {"IS DISTINCT FROM": "IS NOT", "IS NOT DISTINCT FROM": "IS"}
_DAY = DAY // MILLISECOND


@dataclass(frozen=True, kw_only=True)
class Writer(ExpressionWriter):
    """`now` is in milliseconds; `format_of` tells how a time column stores time."""

    format_of: Callable[[str], TimeFormat]

    product = "SQLite"
    booleans = ("0", "1")

    def quote(self, name: str) -> str:
        return column_name(name)

    def literal(self, text: str) -> str:
        return literal(text)

    def holds_time(self, column: Column) -> bool:
        return times.is_declared_time(column)

    def column_time(self, column: Column) -> str:
        return times.column_milliseconds(
            column.name, self.format_of(column.name), never=self.never, compared=self.compared
        )

    def instant(self, moment: datetime) -> str:
        return str(times.milliseconds_of(moment))

    def shifted(self, instant: str, interval: Interval, sign: str) -> str:
        if interval.months:
            instant = times.months_later(instant, interval.months if sign == "+" else -interval.months)
        return f"({instant} {sign} {interval.micros // MILLISECOND})" if interval.micros else instant

    def from_seconds(self, seconds: str) -> str:
        return f"CAST(({seconds}) * 1000 AS INTEGER)"

    def from_number(self, number: str, fmt: TimeFormat, then: str) -> str:
        # A text is larger than any number, whatever its digits say.
        return super().from_number(f"({number} + 0)", fmt, then)

    def start_of_day(self, wall: str) -> str:
        """The remainder of a time before 1970 is negative, hence twice."""
        return f"({wall} - ({wall} % {_DAY} + {_DAY}) % {_DAY})"

    def text_time(self, text: str) -> str:
        return times.text_milliseconds(text, never=self.never)

    def cast(self, value: str, kind: str) -> str | None:
        if kind == "boolean":
            return f"(CAST({value} AS INTEGER) <> 0)"
        return f"CAST({value} AS {_CASTS[kind]})" if kind in _CASTS else None

    def json_text(self, document: Node, path: tuple[str | int, ...]) -> str:
        return f"json_extract({self.value(document)}, {literal(json_path(path))})"

    def choice(self, function: str, arguments: list[str]) -> str:
        if function in ("greatest", "least"):
            several = turned(arguments) if len(arguments) > 1 else [*arguments, *arguments]
            return super().choice("max" if function == "greatest" else "min", several)
        if function == "coalesce" and len(arguments) == 1:
            return arguments[0]
        return super().choice(function, arguments)

    def binary(self, node: ex.Binary) -> str:
        if node.operator != "LIKE":
            return super().binary(node)
        if not isinstance(node.right, ex.Text):
            raise Unsupported("LIKE needs a literal pattern in an expiration expression on SQLite")
        # SQLite's LIKE ignores case, the other engines' does not.
        return f"({self.value(node.left)} GLOB {literal(_glob(node.right.value))})"

    def operation(self, operator: str, left: str, right: str) -> str:
        return super().operation(_OPERATORS.get(operator, operator), left, right)


def _glob(pattern: str) -> str:
    """A backslash takes the meaning from the character behind it, as in the other engines' LIKE."""
    special = {"%": "*", "_": "?"}
    literally = {"*": "[*]", "?": "[?]", "[": "[[]"}
    parts = re.findall(r"\\?.", pattern, re.DOTALL)
    return "".join(special.get(part) or literally.get(part[-1], part[-1]) for part in parts)
