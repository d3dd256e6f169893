"""An expiration expression in SQLite's SQL, with instants as milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from lapse.engines.sqlite import times
from lapse.engines.sqlite.names import literal, quote
from lapse.errors import Unsupported
from lapse.model import expression as ex
from lapse.model.expression import Node
from lapse.model.interval import MILLISECOND
from lapse.model.table import Table, TimeFormat

_SAME_IN_SQLITE = frozenset({"lower", "upper", "length", "abs", "round"})
_CASTS = {"integer": "INTEGER", "float": "REAL", "text": "TEXT"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """`now` is SQL for the current time in milliseconds; `format_of` tells how a time column stores time."""

    table: Table
    now: str
    format_of: Callable[[str], TimeFormat]

    def time(self, node: Node) -> str:
        """SQL for `node` as an instant in milliseconds."""
        match node:
            case ex.ColumnRef(name=name):
                return times.column_milliseconds(self._column(name), self.format_of(name))
            case ex.Text(value=value):
                return str(_milliseconds_of_text(value))
            case ex.Now():
                return self.now
            case ex.Null():
                return "NULL"
            case ex.Binary(operator="+" | "-" as sign, left=left, right=ex.Span(interval=interval)):
                step = 1 if sign == "+" else -1
                start = self.time(left)
                if interval.months:
                    start = times.months_later(start, step * interval.months)
                return f"({start} {sign} {interval.micros // MILLISECOND})" if interval.micros else start
            case ex.Binary(operator="+", left=ex.Span() as span, right=right):
                return self.time(ex.Binary("+", right, span))
            case ex.Case(branches=branches, otherwise=otherwise):
                whens = " ".join(f"WHEN {self.value(test)} THEN {self.time(then)}" for test, then in branches)
                return f"(CASE {whens} ELSE {self.time(otherwise)} END)"
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return _choice(function, [self.time(argument) for argument in arguments])
            case ex.Call(function="to_timestamp", arguments=(seconds,)):
                return f"CAST(({self.value(seconds)}) * 1000 AS INTEGER)"
            case ex.Cast(operand=operand, type=kind) if kind in ex.TIME_TYPES:
                return self.time(operand)
            case ex.JsonPath():
                return times.text_milliseconds(self.value(node))
        raise Unsupported(f"the expiration expression must give a time, and {self._words(node)} does not")

    def value(self, node: Node) -> str:
        """SQL for `node` as whatever it is."""
        if self._is_time(node):
            return self.time(node)
        match node:
            case ex.ColumnRef(name=name):
                return quote(self._column(name))
            case ex.Text(value=text):
                return literal(text)
            case ex.Number(digits=digits):
                return digits
            case ex.Boolean(value=truth):
                return "1" if truth else "0"
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
            case ex.Call(function=function, arguments=arguments) if function in _SAME_IN_SQLITE:
                return f"{function}({', '.join(self.value(argument) for argument in arguments)})"
            case ex.Cast(operand=operand, type="boolean"):
                return f"(CAST({self.value(operand)} AS INTEGER) <> 0)"
            case ex.Cast(operand=operand, type=kind) if kind in _CASTS:
                return f"CAST({self.value(operand)} AS {_CASTS[kind]})"
            case ex.JsonPath(document=document, path=path):
                return f"json_extract({self.value(document)}, {literal(_json_path(path))})"
        raise Unsupported(f"SQLite cannot compute {self._words(node)} in an expiration expression")

    def _binary(self, operator: str, left: Node, right: Node) -> str:
        if operator in ex.COMPARISONS and (self._is_time(left) or self._is_time(right)):
            first, second = self.time(left), self.time(right)
        elif operator == "LIKE":
            if not isinstance(right, ex.Text):
                raise Unsupported("LIKE needs a literal pattern in an expiration expression on SQLite")
            # SQLite's LIKE ignores case, the other engines' does not.
            return f"({self.value(left)} GLOB {literal(_glob(right.value))})"
        else:
            first, second = self.value(left), self.value(right)
        sqlite_operator = {"IS DISTINCT FROM": "IS NOT", "IS NOT DISTINCT FROM": "IS"}.get(operator, operator)
        return f"({first} {sqlite_operator} {second})"

    def _is_time(self, node: Node) -> bool:
        match node:
            case ex.Now():
                return True
            case ex.ColumnRef(name=name):
                column = self.table.column(name)
                return column is not None and times.is_declared_time(column)
            case ex.Binary(operator="+" | "-", left=left, right=ex.Span()):
                return self._is_time(left) or isinstance(left, ex.ColumnRef)
            case ex.Cast(type=kind):
                return kind in ex.TIME_TYPES
            case ex.Call(function="to_timestamp"):
                return True
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return any(self._is_time(argument) for argument in arguments)
            case ex.Case(branches=branches, otherwise=otherwise):
                return any(self._is_time(then) for _, then in branches) or self._is_time(otherwise)
            case _:
                return False

    def _column(self, name: str) -> str:
        column = self.table.column(name)
        if column is None:
            raise Unsupported(f"table {self.table.name} has no column {name}, which its expiration expression reads")
        return column.name

    def _words(self, node: Node) -> str:
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


def _choice(function: str, arguments: list[str]) -> str:
    if function == "greatest" or function == "least":
        # SQLite's max() of several is NULL if one is; GREATEST leaves NULLs out.
        turned = [f"coalesce({', '.join(arguments[i:] + arguments[:i])})" for i in range(len(arguments))]
        parts = turned if len(arguments) > 1 else [*arguments, *arguments]
        return f"{'max' if function == 'greatest' else 'min'}({', '.join(parts)})"
    if function == "coalesce" and len(arguments) == 1:
        return arguments[0]
    return f"{function}({', '.join(arguments)})"


def _json_path(path: tuple[str | int, ...]) -> str:
    parts = [f"[{key}]" if isinstance(key, int) else '."' + key.replace('"', '\\"') + '"' for key in path]
    return "$" + "".join(parts)


def _glob(pattern: str) -> str:
    special = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return "".join(special.get(character, character) for character in pattern)


def _milliseconds_of_text(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Unsupported(f"{text!r} is no time; write it as 'YYYY-MM-DD HH:MM:SS'") from None
    return times.milliseconds_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
