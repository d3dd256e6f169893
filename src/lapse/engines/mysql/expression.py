"""An expiration expression in the SQL of MariaDB and MySQL, with instants as DATETIME(6) in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from lapse.engines.expression import ExpressionWriter, json_path, turned
from lapse.engines.mysql import times
from lapse.engines.mysql.names import literal, quote
from lapse.engines.mysql.times import TimeKind
from lapse.engines.plausible import ISO_OFFSET, ISO_TIME, NEVER, NO_YEAR
from lapse.model.expression import Node
from lapse.model.interval import Interval
from lapse.model.table import Column

_OFFSET = "[+-][0-9:]+$"
"""At the end of a time that has one."""
_FIXED = re.compile(r"Etc/GMT(?P<sign>[+-])(?P<hours>\d{1,2})")
_CASTS = {"integer": "SIGNED", "float": "DOUBLE", "text": "CHAR"}


@dataclass(frozen=True, kw_only=True)
class Writer(ExpressionWriter):
    product = "MariaDB and MySQL"
    functions: ClassVar = {**ExpressionWriter.functions, "length": "char_length"}

    def quote(self, name: str) -> str:
        return quote(name)

    def literal(self, text: str) -> str:
        return literal(text)

    def holds_time(self, column: Column) -> bool:
        return times.kind_of(column) not in (None, TimeKind.SECONDS)

    def column_time(self, column: Column) -> str:
        return self._moment(column, times.require_kind(column, self.table.name))

    def wall_column(self, column: Column) -> str | None:
        kind = times.kind_of(column)
        if kind not in (TimeKind.WALL_CLOCK, TimeKind.DAY) or self.is_managed(column):
            return None
        return self._moment(column, kind)

    def _moment(self, column: Column, kind: TimeKind) -> str:
        return times.moment_or_never(column, kind, compared=self.compared)

    def from_wall(self, wall: str) -> str:
        return wall if self.zone == "UTC" else later_reading(wall, self.zone)

    def to_wall(self, instant: str) -> str:
        return instant if self.zone == "UTC" else f"convert_tz({instant}, '+00:00', {zone_literal(self.zone)})"

    def instant(self, moment: datetime) -> str:
        return times.instant_literal(moment)

    def shifted(self, instant: str, interval: Interval, sign: str) -> str:
        return times.shifted(instant, interval, sign)

    def from_seconds(self, seconds: str) -> str:
        # TiDB reads `+ INTERVAL (` as its function of that name.
        return f"date_add({times.EPOCH}, INTERVAL ({seconds}) SECOND)"

    def start_of_day(self, wall: str) -> str:
        return f"CAST(date({wall}) AS DATETIME(6))"

    def text_time(self, text: str) -> str:
        offset = f"regexp_substr({text}, {literal(_OFFSET)})"
        wall = f"CAST(left({text}, char_length({text}) - char_length({offset})) AS DATETIME(6))"
        digits = f"replace({offset}, ':', '')"
        minutes = f"(substr({digits}, 2, 2) * 60 + coalesce(nullif(substr({digits}, 4, 2), ''), 0))"
        earlier, later = (f"{move}({wall}, INTERVAL {minutes} MINUTE)" for move in ("date_sub", "date_add"))
        whole = f"CAST({text} AS DATETIME(6))"
        return (
            f"(CASE WHEN {text} REGEXP {literal(ISO_TIME)} THEN"
            f" CASE WHEN {text} REGEXP {literal(NO_YEAR)} THEN {self.instant(NEVER)}"
            f" WHEN NOT {text} REGEXP {literal(ISO_OFFSET)} THEN {self.from_wall(whole)}"
            f" WHEN {text} REGEXP '[Zz]$' THEN CAST(left({text}, char_length({text}) - 1) AS DATETIME(6))"
            f" WHEN left({offset}, 1) = '+' THEN {earlier} ELSE {later} END END)"
        )

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
    """The instant of a wall-clock time: of two readings, and in a gap, the later one.

    The offsets of the day before and of the day after are tried, as no zone changes its clocks twice in two days.
    """
    name = zone_literal(zone)
    plain = f"convert_tz({wall}, {name}, '+00:00')"
    before = f"(convert_tz({wall} - INTERVAL 1 DAY, {name}, '+00:00') + INTERVAL 1 DAY)"
    after = f"(convert_tz({wall} + INTERVAL 1 DAY, {name}, '+00:00') - INTERVAL 1 DAY)"
    latest = f"greatest({before}, {after})"
    is_plain = f"convert_tz({latest}, '+00:00', {name}) <> {wall} AND convert_tz({plain}, '+00:00', {name}) = {wall}"
    return f"(CASE WHEN {is_plain} THEN {plain} ELSE {latest} END)"


def zone_literal(zone: str) -> str:
    """An offset where it is one: the server need not have loaded any zones for that."""
    fixed = _FIXED.fullmatch(zone)
    if fixed is None:
        return literal(zone)
    return literal(f"{'-' if fixed['sign'] == '+' else '+'}{int(fixed['hours']):02}:00")
