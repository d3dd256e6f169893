"""An expiration expression in PostgreSQL's SQL, with every time in it as an instant.

A session's time zone, date style and interval style have no say: wall-clock values are turned into instants by the
policy's zone, months are counted in UTC, and text is read as time only where it is written as ISO 8601. Nor has its
search path: every function, operator and type is PostgreSQL's own by name, so none of another role's is ever called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from lapse.engines.expression import ExpressionWriter
from lapse.engines.plausible import EARLIEST, ISO_OFFSET, ISO_TIME, LATEST, NEVER, NO_YEAR
from lapse.engines.postgres.names import literal, quote
from lapse.engines.postgres.times import day, instant, micros, months, operation, shifted, wall_clock
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
_TEXTS = ("text", "character varying", "character")
_CASTS = {"integer": "int8", "float": "float8", "text": "text", "boolean": "bool"}
_WORDS = frozenset({"AND", "OR"})
_CLAMP = (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))  # noqa: DTZ001
"""What is further away is compared as if it were this: no arithmetic with it leaves the range of the type."""


def base_type(column: Column) -> str:
    """The type without its precision: `timestamp(3) with time zone` is an instant like any other.

    A custom type may have any name. One of PostgreSQL's own is shown with its schema where another has taken its name.
    """
    if column.custom:
        return ""
    name = column.type.removeprefix("pg_catalog.")
    if name.startswith("timestamp"):
        return INSTANT if name.endswith(" with time zone") else WALL_CLOCKS[0]
    return name.partition("(")[0]


@dataclass(frozen=True, kw_only=True)
class Writer(ExpressionWriter):
    """`format` is how numbers are times."""

    format: TimeFormat | None = None

    product = "PostgreSQL"
    functions: ClassVar = {name: f"pg_catalog.{name}" for name in ExpressionWriter.functions}
    null_time = "NULL::pg_catalog.timestamptz"

    def time(self, node: Node) -> str:
        match node:
            case ex.Binary(operator="+" | "-" as sign, left=left, right=right) if self._is_computed_span(right):
                in_utc = operation(sign, f"({self.time(left)} AT TIME ZONE 'UTC')", self._span(right))
                return f"({in_utc} AT TIME ZONE 'UTC')"
            case ex.Binary(operator="+", left=left, right=right) if self._is_computed_span(left):
                return self.time(ex.Binary("+", right, left))
        return super().time(node)

    def value(self, node: Node) -> str:
        match node:
            case ex.Span() | ex.Cast(type="interval"):
                return self._span(node)
            case ex.Cast(operand=ex.ColumnRef(name=name), type=kind) if self.column(name).custom and kind in _CASTS:
                return f"({quote(self.column(name).name)})::pg_catalog.{_CASTS[kind]}"
            case ex.ColumnRef(name=name) if self.column(name).custom:
                column = self.column(name)
                raise Unsupported(
                    f"column {name} has the type {column.type}, whose operators are not PostgreSQL's own",
                    hint=f"compare it as text: {name}::text",
                )
        return super().value(node)

    def quote(self, name: str) -> str:
        return quote(name)

    def literal(self, text: str) -> str:
        return literal(text)

    def holds_time(self, column: Column) -> bool:
        return base_type(column) in (INSTANT, *WALL_CLOCKS)

    def column_time(self, column: Column) -> str:
        name = quote(column.name)
        if base_type(column) == INSTANT:
            if self.compared:
                return self._clamped(name, instant)
            return self.sane(name, (instant(EARLIEST), instant(LATEST)), name)
        if base_type(column) in _TEXTS:
            return self.text_time(name)
        if base_type(column) in NUMBERS and self.format in UNITS_PER_SECOND:
            return from_number(self, column, self.format)
        raise Unsupported(
            f"column {column.name} has the type {column.type}, which is no time",
            hint="use a timestamp or date column, to_timestamp(seconds), or set ttl_time_format",
        )

    def instant(self, moment: datetime) -> str:
        return instant(moment)

    def shifted(self, instant: str, interval: Interval, sign: str) -> str:
        return shifted(instant, interval, sign)

    def from_seconds(self, seconds: str) -> str:
        return f"pg_catalog.to_timestamp(({seconds})::pg_catalog.float8)"

    def start_of_day(self, wall: str) -> str:
        return f"({wall})::pg_catalog.date::pg_catalog.timestamp"

    def text_time(self, text: str) -> str:
        text = f"({text})::pg_catalog.text"
        return (
            f"(CASE WHEN {operation('~', text, literal(ISO_TIME))} THEN"
            f" CASE WHEN {operation('~', text, literal(NO_YEAR))} THEN {instant(NEVER)}"
            f" WHEN {operation('~', text, literal(ISO_OFFSET))} THEN ({text})::pg_catalog.timestamptz"
            f" ELSE {self.from_wall(f'({text})::pg_catalog.timestamp')} END END)"
        )

    def cast(self, value: str, kind: str) -> str | None:
        return f"({value})::pg_catalog.{_CASTS[kind]}" if kind in _CASTS else None

    def json_text(self, document: Node, path: tuple[str | int, ...]) -> str:
        keys = f"ARRAY[{', '.join(literal(str(key)) for key in path)}]::pg_catalog.text[]"
        return operation("#>>", self._document(document), keys)

    def prefixed(self, operator: str, operand: str) -> str:
        return f"(OPERATOR(pg_catalog.{operator}) {operand})" if operator == "-" else f"({operator} {operand})"

    def membership(self, operand: str, choices: list[str]) -> str:
        return f"({' OR '.join(operation('=', operand, choice) for choice in choices)})"

    def operation(self, operator: str, left: str, right: str) -> str:
        match operator:
            case "LIKE":
                return operation("~~", left, right)
            case "IS NOT DISTINCT FROM":
                nulls = f"({left} IS NULL OR {right} IS NULL)"
                return (
                    f"(CASE WHEN {nulls} THEN {left} IS NULL AND {right} IS NULL"
                    f" ELSE {operation('=', left, right)} END)"
                )
            case "IS DISTINCT FROM":
                return f"(NOT {self.operation('IS NOT DISTINCT FROM', left, right)})"
        return super().operation(operator, left, right) if operator in _WORDS else operation(operator, left, right)

    def wall_column(self, column: Column) -> str | None:
        if base_type(column) not in WALL_CLOCKS:
            return None
        if not self.compared:
            return self._sane_wall(column)
        name = quote(column.name)
        if base_type(column) == "date":
            return f"({self._clamped(name, lambda moment: day(moment.date()))})::pg_catalog.timestamp"
        return self._clamped(name, wall_clock)

    def _sane_wall(self, column: Column) -> str:
        name, is_day = quote(column.name), base_type(column) == "date"
        low, high = (day(bound.date()) if is_day else wall_clock(bound) for bound in (EARLIEST, LATEST))
        inside = f"{operation('>=', name, low)} AND {operation('<', name, high)}"
        value = f"{name}::pg_catalog.timestamp" if is_day else name
        return f"(CASE WHEN {inside} THEN {value}{self.otherwise(name, wall_clock(NEVER))} END)"

    def wall_shifted(self, wall: str, interval: Interval, sign: str) -> str:
        if interval.months:
            wall = operation(sign, wall, months(interval.months))
        return operation(sign, wall, micros(interval.micros)) if interval.micros else wall

    def from_wall(self, wall: str) -> str:
        return f"({wall} AT TIME ZONE {literal(self.zone)})"

    def to_wall(self, instant: str) -> str:
        return f"({instant} AT TIME ZONE {literal(self.zone)})"

    def _clamped(self, name: str, write: Callable[[datetime], str]) -> str:
        low, high = (write(moment.replace(tzinfo=UTC)) for moment in _CLAMP)
        return (
            f"(CASE WHEN {operation('<', name, low)} THEN {low}"
            f" WHEN {operation('>', name, high)} THEN {high} ELSE {name} END)"
        )

    def _document(self, node: Node) -> str:
        if isinstance(node, ex.ColumnRef) and self.column(node.name).type not in ("json", "jsonb"):
            return f"({quote(self.column(node.name).name)})::pg_catalog.jsonb"
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
                return operation("+", months(interval.months), micros(interval.micros))
            case ex.Cast(operand=operand, type="interval"):
                return f"({self.value(operand)})::pg_catalog.interval"
            case ex.Binary(operator="*", left=left, right=right):
                return operation("*", self.value(left), self.value(right))
            case _:
                return self.value(node)


def from_number(writer: Writer, column: Column, fmt: TimeFormat) -> str:
    """The instant that a number stands for."""
    name = quote(column.name)
    seconds = operation("/", f"{name}::pg_catalog.float8", str(UNITS_PER_SECOND[fmt]))
    return writer.from_number(name, fmt, f"pg_catalog.to_timestamp({seconds})")
