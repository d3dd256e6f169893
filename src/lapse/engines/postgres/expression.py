"""An expiration expression in PostgreSQL's SQL, with every time in it as an instant.

A session's time zone, date style and interval style have no say: wall-clock values are turned into instants by the
policy's zone, months are counted in UTC, and text is read as time only where it is written as ISO 8601.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from lapse.engines.postgres.names import instant, literal, micros, months, quote, shifted
from lapse.errors import Drift, Unsupported
from lapse.model import expression as ex
from lapse.model.expression import Node
from lapse.model.interval import Interval
from lapse.model.table import Column, Table, TimeFormat

INSTANT = "timestamp with time zone"
WALL_CLOCKS = ("timestamp without time zone", "date")
NUMBERS = frozenset({"bigint", "integer", "numeric", "double precision"})
UNITS_PER_SECOND = {TimeFormat.UNIX: 1, TimeFormat.UNIX_MS: 1000}
"""How a number can be a time, by `ttl_time_format`."""
_SAME_IN_POSTGRES = frozenset({"lower", "upper", "length", "abs", "round"})
_CASTS = {"integer": "bigint", "float": "double precision", "text": "text", "boolean": "boolean"}
_ISO_TEXT = r"^\s*\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?\s*(Z|[+-]\d{2}(:?\d{2})?)?)?\s*$"
_ZONED_TEXT = r":\d{2}(\.\d+)?\s*(Z|[+-]\d{2}(:?\d{2})?)\s*$"


def base_type(column: Column) -> str:
    """The type without its precision: `timestamp(3) with time zone` is an instant like any other."""
    name = column.type
    if name.startswith("timestamp"):
        return INSTANT if name.endswith(" with time zone") else WALL_CLOCKS[0]
    return name.partition("(")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """`now` is SQL for the current instant, `zone` where wall-clock values are read, `format` how numbers are times."""

    table: Table
    now: str
    zone: str
    format: TimeFormat | None = None

    def time(self, node: Node) -> str:
        """SQL for `node` as an instant."""
        wall = self._wall(node)
        if wall is not None:
            return self._from_wall(wall)
        match node:
            case ex.ColumnRef(name=name):
                return self._time_column(name)
            case ex.Text(value=value):
                return instant(_moment(value, self.zone))
            case ex.Now():
                return self.now
            case ex.Null():
                return "NULL::timestamptz"
            case ex.Binary(operator="+" | "-" as sign, left=left, right=ex.Span(interval=interval)):
                return shifted(self.time(left), interval, sign)
            case ex.Binary(operator="+", left=ex.Span() as span, right=right):
                return self.time(ex.Binary("+", right, span))
            case ex.Binary(operator="+" | "-" as sign, left=left, right=right) if self._is_span(right):
                return f"(({self.time(left)} AT TIME ZONE 'UTC' {sign} {self._span(right)}) AT TIME ZONE 'UTC')"
            case ex.Binary(operator="+", left=left, right=right) if self._is_span(left):
                return self.time(ex.Binary("+", right, left))
            case ex.Case(branches=branches, otherwise=otherwise):
                whens = " ".join(f"WHEN {self.value(test)} THEN {self.time(then)}" for test, then in branches)
                return f"(CASE {whens} ELSE {self.time(otherwise)} END)"
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return f"{function}({', '.join(self.time(argument) for argument in arguments)})"
            case ex.Call(function="to_timestamp", arguments=(seconds,)):
                return f"to_timestamp({self.value(seconds)})"
            case ex.Cast(operand=operand, type="timestamptz"):
                return self.time(operand)
            case ex.JsonPath():
                return self._text_as_time(self.value(node))
        raise Unsupported(f"the expiration expression must give a time, and {_words(node)} does not")

    def value(self, node: Node) -> str:
        """SQL for `node` as whatever it is."""
        if self._is_time(node):
            return self.time(node)
        match node:
            case ex.ColumnRef(name=name):
                return quote(self._column(name).name)
            case ex.Text(value=text):
                return literal(text)
            case ex.Number(digits=digits):
                return digits
            case ex.Boolean(value=truth):
                return "TRUE" if truth else "FALSE"
            case ex.Null():
                return "NULL"
            case ex.Span():
                return self._span(node)
            case ex.Unary(operator=operator, operand=operand):
                inner = self.value(operand)
                return f"({inner} {operator})" if operator.startswith("IS") else f"({operator} {inner})"
            case ex.Binary(operator=operator, left=left, right=right):
                return self._binary(operator, left, right)
            case ex.Case(branches=branches, otherwise=otherwise):
                whens = " ".join(f"WHEN {self.value(test)} THEN {self.value(then)}" for test, then in branches)
                return f"(CASE {whens} ELSE {self.value(otherwise)} END)"
            case ex.Membership(operand=operand, choices=choices):
                side = self.time if self._is_time(operand) else self.value
                return f"({side(operand)} IN ({', '.join(side(choice) for choice in choices)}))"
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES | _SAME_IN_POSTGRES:
                return f"{function}({', '.join(self.value(argument) for argument in arguments)})"
            case ex.Cast(operand=operand, type="interval"):
                return self._span(node)
            case ex.Cast(operand=operand, type=kind) if kind in _CASTS:
                return f"({self.value(operand)})::{_CASTS[kind]}"
            case ex.JsonPath(document=document, path=path):
                return f"({self._document(document)} #>> ARRAY[{', '.join(literal(str(key)) for key in path)}])"
        raise Unsupported(f"PostgreSQL cannot compute {_words(node)} in an expiration expression")

    def _binary(self, operator: str, left: Node, right: Node) -> str:
        if operator in ex.COMPARISONS and (self._is_time(left) or self._is_time(right)):
            return f"({self.time(left)} {operator} {self.time(right)})"
        return f"({self.value(left)} {operator} {self.value(right)})"

    # Wall-clock time: stays what it is through arithmetic, and becomes an instant at the end.

    def _wall(self, node: Node) -> str | None:
        match node:
            case ex.ColumnRef(name=name):
                column = self._column(name)
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

    def _time_column(self, name: str) -> str:
        column = self._column(name)
        if base_type(column) == INSTANT:
            return quote(column.name)
        if base_type(column) in ("text", "character varying", "character"):
            return self._text_as_time(quote(column.name))
        if base_type(column) in NUMBERS and self.format in UNITS_PER_SECOND:
            return from_number(column, self.format)
        raise Unsupported(
            f"column {column.name} has the type {column.type}, which is no time",
            hint="use a timestamp or date column, to_timestamp(seconds), or set ttl_time_format",
        )

    def _text_as_time(self, text: str) -> str:
        """NULL, which never expires, for text that is not written as a time."""
        return (
            f"(CASE WHEN {text} !~* {literal(_ISO_TEXT)} THEN NULL"
            f" WHEN {text} ~* {literal(_ZONED_TEXT)} THEN ({text})::timestamptz"
            f" ELSE {self._from_wall(f'({text})::timestamp')} END)"
        )

    def _document(self, node: Node) -> str:
        if isinstance(node, ex.ColumnRef) and self._column(node.name).type not in ("json", "jsonb"):
            return f"({quote(self._column(node.name).name)})::jsonb"
        return self.value(node)

    # What kind of thing a node is

    def _is_time(self, node: Node) -> bool:
        match node:
            case ex.Now():
                return True
            case ex.ColumnRef(name=name):
                return base_type(self._column(name)) in (INSTANT, *WALL_CLOCKS)
            case ex.Binary(operator="+" | "-", left=left, right=right):
                return (self._is_time(left) and self._is_span(right)) or (self._is_span(left) and self._is_time(right))
            case ex.Cast(type=kind):
                return kind in ex.TIME_TYPES
            case ex.Call(function="to_timestamp" | "date_trunc_day"):
                return True
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return any(self._is_time(argument) for argument in arguments)
            case ex.Case(branches=branches, otherwise=otherwise):
                return any(self._is_time(then) for _, then in branches) or self._is_time(otherwise)
            case _:
                return False

    def _is_span(self, node: Node) -> bool:
        match node:
            case ex.Span() | ex.Cast(type="interval"):
                return True
            case ex.ColumnRef(name=name):
                return base_type(self._column(name)).startswith("interval")
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

    def _column(self, name: str) -> Column:
        column = self.table.column(name)
        if column is None:
            raise Drift(f"table {self.table.name} has no column {name}, which its TTL policy reads")
        return column


def from_number(column: Column, fmt: TimeFormat) -> str:
    """The instant that a number stands for."""
    return f"to_timestamp({quote(column.name)}::double precision / {UNITS_PER_SECOND[fmt]})"


def wall_shifted(wall: str, interval: Interval, sign: str) -> str:
    if interval.months:
        wall = f"({wall} {sign} {months(interval.months)})"
    return f"({wall} {sign} {micros(interval.micros)})" if interval.micros else wall


def _moment(text: str, zone: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Unsupported(f"{text!r} is no time; write it as 'YYYY-MM-DD HH:MM:SS'") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone), fold=1)


def _words(node: Node) -> str:
    match node:
        case ex.Call(function=function):
            return f"{function}(…)"
        case ex.Number(digits=digits):
            return f"the number {digits}"
        case ex.Boolean(value=truth):
            return str(truth).lower()
        case ex.Binary(operator=operator):
            return f"the result of {operator}"
        case ex.Cast(type=kind):
            return f"a cast to {kind}"
        case ex.Span():
            return "an interval"
        case _:
            return "this part of it"
