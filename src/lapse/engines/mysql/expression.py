"""An expiration expression in the SQL of MariaDB and MySQL, with instants as DATETIME(6) in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from lapse.engines.mysql import times
from lapse.engines.mysql.names import literal, quote
from lapse.engines.mysql.times import Kind
from lapse.errors import Unsupported
from lapse.model import expression as ex
from lapse.model.expression import Node
from lapse.model.table import Column, Table

_FUNCTIONS = {"lower": "lower", "upper": "upper", "length": "char_length", "abs": "abs", "round": "round"}
_CASTS = {"integer": "SIGNED", "float": "DOUBLE", "text": "CHAR"}
_OPERATORS = {"IS NOT DISTINCT FROM": "<=>"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """`now` is SQL for the current time in UTC; `zone` is what wall-clock columns mean."""

    table: Table
    now: str
    zone: str = "UTC"

    def time(self, node: Node) -> str:
        """SQL for `node` as an instant."""
        match node:
            case ex.ColumnRef(name=name):
                return self._column_time(self._column(name))
            case ex.Text(value=value):
                return _instant_of_text(value)
            case ex.Now():
                return self.now
            case ex.Null():
                return "NULL"
            case ex.Binary(operator="+" | "-" as sign, left=left, right=ex.Span(interval=interval)):
                return times.shifted(self.time(left), interval, sign)
            case ex.Binary(operator="+", left=ex.Span() as span, right=right):
                return self.time(ex.Binary("+", right, span))
            case ex.Case(branches=branches, otherwise=otherwise):
                whens = " ".join(f"WHEN {self.value(test)} THEN {self.time(then)}" for test, then in branches)
                return f"(CASE {whens} ELSE {self.time(otherwise)} END)"
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return _choice(function, [self.time(argument) for argument in arguments])
            case ex.Call(function="to_timestamp", arguments=(seconds,)):
                return f"({times.EPOCH} + INTERVAL ({self.value(seconds)}) SECOND)"
            case ex.Call(function="date_trunc_day", arguments=(operand,)):
                return f"CAST(date({self.time(operand)}) AS DATETIME(6))"
            case ex.Cast(operand=operand, type="date"):
                return f"CAST(date({self.time(operand)}) AS DATETIME(6))"
            case ex.Cast(operand=operand, type=kind) if kind in ex.TIME_TYPES:
                return self.time(operand)
            case ex.JsonPath():
                return f"CAST({self.value(node)} AS DATETIME(6))"
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
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return _choice(function, [self.value(argument) for argument in arguments])
            case ex.Call(function=function, arguments=arguments) if function in _FUNCTIONS:
                return f"{_FUNCTIONS[function]}({', '.join(self.value(argument) for argument in arguments)})"
            case ex.Cast(operand=operand, type="boolean"):
                return f"({self.value(operand)} <> 0)"
            case ex.Cast(operand=operand, type=kind) if kind in _CASTS:
                return f"CAST({self.value(operand)} AS {_CASTS[kind]})"
            case ex.JsonPath(document=document, path=path):
                return f"json_value({self.value(document)}, {literal(_json_path(path))})"
        raise Unsupported(f"MariaDB and MySQL cannot compute {_words(node)} in an expiration expression")

    def _binary(self, operator: str, left: Node, right: Node) -> str:
        if operator in ex.COMPARISONS and (self._is_time(left) or self._is_time(right)):
            first, second = self.time(left), self.time(right)
        else:
            first, second = self.value(left), self.value(right)
        match operator:
            case "IS DISTINCT FROM":
                return f"(NOT ({first} <=> {second}))"
            case "||":
                return f"concat({first}, {second})"
            case "LIKE":
                # Most collations ignore case here; the other engines' LIKE does not.
                return f"({first} LIKE BINARY {second})"
        return f"({first} {_OPERATORS.get(operator, operator)} {second})"

    def _is_time(self, node: Node) -> bool:
        match node:
            case ex.Now():
                return True
            case ex.ColumnRef(name=name):
                column = self.table.column(name)
                return column is not None and times.kind_of(column) not in (None, Kind.SECONDS)
            case ex.Binary(operator="+" | "-", left=left, right=ex.Span()):
                return self._is_time(left) or isinstance(left, ex.ColumnRef)
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

    def _column_time(self, column: Column) -> str:
        kind = times.require_kind(column, self.table.name)
        moment = times.moment(column, kind)
        if self.zone == "UTC" or kind in (Kind.INSTANT, Kind.SECONDS):
            return moment
        return later_reading(moment, self.zone)

    def _column(self, name: str) -> Column:
        column = self.table.column(name)
        if column is None:
            raise Unsupported(f"table {self.table.name} has no column {name}, which its expiration expression reads")
        return column


def later_reading(wall: str, zone: str) -> str:
    """The instant of a wall-clock time. In the hour that is read twice it is the second reading, never the earlier."""
    name = literal(zone)
    first = f"convert_tz({wall}, {name}, '+00:00')"
    second = f"({first} + INTERVAL 1 HOUR)"
    return f"(CASE WHEN convert_tz({second}, '+00:00', {name}) = {wall} THEN {second} ELSE {first} END)"


def _choice(function: str, arguments: list[str]) -> str:
    if function in ("greatest", "least"):
        # Here GREATEST is NULL if one argument is; elsewhere in Lapse it leaves NULLs out.
        if len(arguments) == 1:
            return arguments[0]
        turned = [f"coalesce({', '.join(arguments[i:] + arguments[:i])})" for i in range(len(arguments))]
        return f"{function}({', '.join(turned)})"
    return f"{function}({', '.join(arguments)})"


def _json_path(path: tuple[str | int, ...]) -> str:
    parts = [f"[{key}]" if isinstance(key, int) else '."' + key.replace('"', '\\"') + '"' for key in path]
    return "$" + "".join(parts)


def _instant_of_text(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Unsupported(f"{text!r} is no time; write it as 'YYYY-MM-DD HH:MM:SS'") from None
    return times.instant_literal(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


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
