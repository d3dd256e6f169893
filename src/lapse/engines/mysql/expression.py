"""An expiration expression in the SQL of MariaDB and MySQL, with instants as DATETIME(6) in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from lapse.engines.expression import ExpressionWriter, json_path, turned
from lapse.engines.mysql import times
from lapse.engines.mysql.names import literal, quote
from lapse.engines.mysql.times import Kind
from lapse.model.expression import Node
from lapse.model.interval import Interval
from lapse.model.table import Column

_CASTS = {"integer": "SIGNED", "float": "DOUBLE", "text": "CHAR"}


@dataclass(frozen=True, kw_only=True)
class Writer(ExpressionWriter):
    """`zone` is what wall-clock columns mean."""

    zone: str = "UTC"

    product = "MariaDB and MySQL"
    functions: ClassVar = {**ExpressionWriter.functions, "length": "char_length"}

    def quote(self, name: str) -> str:
        return quote(name)

    def literal(self, text: str) -> str:
        return literal(text)

    def holds_time(self, column: Column) -> bool:
        return times.kind_of(column) not in (None, Kind.SECONDS)

    def column_time(self, column: Column) -> str:
        kind = times.require_kind(column, self.table.name)
        moment = times.moment(column, kind)
        if self.zone == "UTC" or kind in (Kind.INSTANT, Kind.SECONDS):
            return moment
        return later_reading(moment, self.zone)

    def instant(self, moment: datetime) -> str:
        return times.instant_literal(moment)

    def shifted(self, instant: str, interval: Interval, sign: str) -> str:
        return times.shifted(instant, interval, sign)

    def from_seconds(self, seconds: str) -> str:
        return f"({times.EPOCH} + INTERVAL ({seconds}) SECOND)"

    def start_of_day(self, instant: str) -> str:
        return f"CAST(date({instant}) AS DATETIME(6))"

    def text_time(self, text: str) -> str:
        return f"CAST({text} AS DATETIME(6))"

    def cast(self, value: str, kind: str) -> str | None:
        if kind == "boolean":
            return f"({value} <> 0)"
        return f"CAST({value} AS {_CASTS[kind]})" if kind in _CASTS else None

    def json_text(self, document: Node, path: tuple[str | int, ...]) -> str:
        return f"json_value({self.value(document)}, {literal(json_path(path))})"

    def choice(self, function: str, arguments: list[str]) -> str:
        if function in ("greatest", "least"):
            if len(arguments) == 1:
                return arguments[0]
            arguments = turned(arguments)
        return super().choice(function, arguments)

    def operation(self, operator: str, left: str, right: str) -> str:
        match operator:
            case "IS NOT DISTINCT FROM":
                return f"({left} <=> {right})"
            case "IS DISTINCT FROM":
                return f"(NOT ({left} <=> {right}))"
            case "||":
                return f"concat({left}, {right})"
            case "LIKE":
                # Most collations ignore case here; the other engines' LIKE does not.
                return f"({left} LIKE BINARY {right})"
        return super().operation(operator, left, right)


def later_reading(wall: str, zone: str) -> str:
    """The instant of a wall-clock time. In the hour that is read twice it is the second reading, never the earlier."""
    name = literal(zone)
    first = f"convert_tz({wall}, {name}, '+00:00')"
    second = f"({first} + INTERVAL 1 HOUR)"
    return f"(CASE WHEN convert_tz({second}, '+00:00', {name}) = {wall} THEN {second} ELSE {first} END)"
