"""An expiration expression in PostgreSQL's SQL, with every time in it as an instant.

A session's time zone, date style and interval style have no say: wall-clock values are turned into instants by the
policy's zone, months are counted in UTC, and text is read as time only where it is written as ISO 8601.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from lapse.engines.expression import ExpressionWriter
from lapse.engines.postgres.names import instant, literal, micros, months, quote, shifted
from lapse.errors import Unsupported
from lapse.model import expression as ex
from lapse.model.expression import Node
from lapse.model.interval import Interval
from lapse.model.table import Column, TimeFormat

INSTANT = "timestamp with time zone"
WALL_CLOCKS = ("timestamp without time zone", "date")
NUMBERS = frozenset({"bigint", "integer", "numeric", "double precision"})
UNITS_PER_SECOND = {TimeFormat.UNIX: 1, TimeFormat.UNIX_MS: 1000}
"""How a number can be a time, by `ttl_time_format`."""
_CASTS = {"integer": "bigint", "float": "double precision", "text": "text", "boolean": "boolean"}
_ISO_TEXT = r"^\s*\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?\s*(Z|[+-]\d{2}(:?\d{2})?)?)?\s*$"
_ZONED_TEXT = r":\d{2}(\.\d+)?\s*(Z|[+-]\d{2}(:?\d{2})?)\s*$"


def base_type(column: Column) -> str:
    """The type without its precision: `timestamp(3) with time zone` is an instant like any other."""
    name = column.type
    if name.startswith("timestamp"):
        return INSTANT if name.endswith(" with time zone") else WALL_CLOCKS[0]
    return name.partition("(")[0]


@dataclass(frozen=True, kw_only=True)
class Writer(ExpressionWriter):
    """`zone` is where wall-clock values are read, `format` how numbers are times."""

    zone: str
    format: TimeFormat | None = None

    product = "PostgreSQL"
    null_time = "NULL::timestamptz"

    def time(self, node: Node) -> str:
        wall = self._wall(node)
        if wall is not None:
            return self._from_wall(wall)
        match node:
            case ex.Binary(operator="+" | "-" as sign, left=left, right=right) if self._is_computed_span(right):
                return f"(({self.time(left)} AT TIME ZONE 'UTC' {sign} {self._span(right)}) AT TIME ZONE 'UTC')"
            case ex.Binary(operator="+", left=left, right=right) if self._is_computed_span(left):
                return self.time(ex.Binary("+", right, left))
        return super().time(node)

    def value(self, node: Node) -> str:
        match node:
            case ex.Span() | ex.Cast(type="interval"):
                return self._span(node)
        return super().value(node)

    def quote(self, name: str) -> str:
        return quote(name)

    def literal(self, text: str) -> str:
        return literal(text)

    def zoned(self, wall: datetime) -> datetime:
        return wall.replace(tzinfo=ZoneInfo(self.zone), fold=1)

    def holds_time(self, column: Column) -> bool:
        return base_type(column) in (INSTANT, *WALL_CLOCKS)

    def column_time(self, column: Column) -> str:
        if base_type(column) == INSTANT:
            return quote(column.name)
        if base_type(column) in ("text", "character varying", "character"):
            return self.text_time(quote(column.name))
        if base_type(column) in NUMBERS and self.format in UNITS_PER_SECOND:
            return from_number(column, self.format)
        raise Unsupported(
            f"column {column.name} has the type {column.type}, which is no time",
            hint="use a timestamp or date column, to_timestamp(seconds), or set ttl_time_format",
        )

    def instant(self, moment: datetime) -> str:
        return instant(moment)

    def shifted(self, instant: str, interval: Interval, sign: str) -> str:
        return shifted(instant, interval, sign)

    def from_seconds(self, seconds: str) -> str:
        return f"to_timestamp({seconds})"

    def start_of_day(self, instant: str) -> str:
        return self._from_wall(f"({instant} AT TIME ZONE {literal(self.zone)})::date::timestamp")

    def text_time(self, text: str) -> str:
        return (
            f"(CASE WHEN {text} !~* {literal(_ISO_TEXT)} THEN NULL"
            f" WHEN {text} ~* {literal(_ZONED_TEXT)} THEN ({text})::timestamptz"
            f" ELSE {self._from_wall(f'({text})::timestamp')} END)"
        )

    def cast(self, value: str, kind: str) -> str | None:
        return f"({value})::{_CASTS[kind]}" if kind in _CASTS else None

    def json_text(self, document: Node, path: tuple[str | int, ...]) -> str:
        return f"({self._document(document)} #>> ARRAY[{', '.join(literal(str(key)) for key in path)}])"

    # Wall-clock time: stays what it is through arithmetic, and becomes an instant at the end.

    def _wall(self, node: Node) -> str | None:
        match node:
            case ex.ColumnRef(name=name):
                column = self.column(name)
                return f"{quote(column.name)}::timestamp" if base_type(column) in WALL_CLOCKS else None
            case ex.Binary(operator="+" | "-" as sign, left=left, right=ex.Span(interval=interval)):
                wall = self._wall(left)
                return None if wall is None else wall_shifted(wall, interval, sign)
            case ex.Binary(operator="+", left=ex.Span() as span, right=right):
                return self._wall(ex.Binary("+", right, span))
            case ex.Cast(operand=operand, type="timestamp" | "date" as kind):
                wall = self._wall(operand) or f"({self.time(operand)} AT TIME ZONE {literal(self.zone)})"
                return wall if kind == "timestamp" else f"({wall})::date::timestamp"
            case ex.Call(function="date_trunc_day", arguments=(operand,)):
                return self._wall(ex.Cast(operand, "date"))
            case _:
                return None

    def _from_wall(self, wall: str) -> str:
        return f"({wall} AT TIME ZONE {literal(self.zone)})"

    def _document(self, node: Node) -> str:
        if isinstance(node, ex.ColumnRef) and self.column(node.name).type not in ("json", "jsonb"):
            return f"({quote(self.column(node.name).name)})::jsonb"
        return self.value(node)

    # What kind of thing a node is

    def is_time(self, node: Node) -> bool:
        match node:
            case ex.Binary(operator="+" | "-", left=left, right=right):
                return (self.is_time(left) and self._is_span(right)) or (self._is_span(left) and self.is_time(right))
        return super().is_time(node)

    def _is_computed_span(self, node: Node) -> bool:
        return not isinstance(node, ex.Span) and self._is_span(node)

    def _is_span(self, node: Node) -> bool:
        match node:
            case ex.Span() | ex.Cast(type="interval"):
                return True
            case ex.ColumnRef(name=name):
                return base_type(self.column(name)).startswith("interval")
            case ex.Binary(operator="*", left=left, right=right):
                return self._is_span(left) or self._is_span(right)
            case _:
                return False

    def _span(self, node: Node) -> str:
        match node:
            case ex.Span(interval=interval):
                return f"({months(interval.months)} + {micros(interval.micros)})"
            case ex.Cast(operand=operand, type="interval"):
                return f"({self.value(operand)})::interval"
            case ex.Binary(operator="*", left=left, right=right):
                return f"({self.value(left)} * {self.value(right)})"
            case _:
                return self.value(node)


def from_number(column: Column, fmt: TimeFormat) -> str:
    """The instant that a number stands for."""
    return f"to_timestamp({quote(column.name)}::double precision / {UNITS_PER_SECOND[fmt]})"


def wall_shifted(wall: str, interval: Interval, sign: str) -> str:
    if interval.months:
        wall = f"({wall} {sign} {months(interval.months)})"
    return f"({wall} {sign} {micros(interval.micros)})" if interval.micros else wall
