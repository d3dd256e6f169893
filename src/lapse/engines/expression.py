"""An expiration expression as SQL: the walk over the tree, which is the same on every engine.

An engine says how it writes an instant and what can be done with one. Everything that is a time is written as an
instant, in whatever form that has there; the rest as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from lapse.errors import Unsupported
from lapse.model import expression as ex
from lapse.model.expression import Node
from lapse.model.interval import Interval
from lapse.model.table import Column, Table


@dataclass(frozen=True, kw_only=True)
class ExpressionWriter(ABC):
    """`now` is SQL for the current instant."""

    table: Table
    now: str

    product: ClassVar[str]
    """How errors call the engine."""
    functions: ClassVar[Mapping[str, str]] = {name: name for name in ("lower", "upper", "length", "abs", "round")}
    booleans: ClassVar[tuple[str, str]] = ("FALSE", "TRUE")
    null_time: ClassVar[str] = "NULL"

    def time(self, node: Node) -> str:
        """SQL for `node` as an instant."""
        match node:
            case ex.ColumnRef(name=name):
                return self.column_time(self.column(name))
            case ex.Text(value=text):
                return self.instant(self.moment(text))
            case ex.Now():
                return self.now
            case ex.Null():
                return self.null_time
            case ex.Binary(operator="+" | "-" as sign, left=left, right=ex.Span(interval=interval)):
                return self.shifted(self.time(left), interval, sign)
            case ex.Binary(operator="+", left=ex.Span() as span, right=right):
                return self.time(ex.Binary("+", right, span))
            case ex.Case(branches=branches, otherwise=otherwise):
                whens = " ".join(f"WHEN {self.value(test)} THEN {self.time(then)}" for test, then in branches)
                return f"(CASE {whens} ELSE {self.time(otherwise)} END)"
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return self.choice(function, [self.time(argument) for argument in arguments])
            case ex.Call(function="to_timestamp", arguments=(seconds,)):
                return self.from_seconds(self.value(seconds))
            case ex.Call(function="date_trunc_day", arguments=(operand,)) | ex.Cast(operand=operand, type="date"):
                return self.start_of_day(self.time(operand))
            case ex.Cast(operand=operand, type=kind) if kind in ex.TIME_TYPES:
                return self.time(operand)
            case ex.JsonPath():
                return self.text_time(self.value(node))
        raise Unsupported(f"the expiration expression must give a time, and {_words(node)} does not")

    def value(self, node: Node) -> str:
        """SQL for `node` as whatever it is."""
        if self.is_time(node):
            return self.time(node)
        match node:
            case ex.ColumnRef(name=name):
                return self.quote(self.column(name).name)
            case ex.Text(value=text):
                return self.literal(text)
            case ex.Number(digits=digits):
                return digits
            case ex.Boolean(value=truth):
                return self.booleans[truth]
            case ex.Null():
                return "NULL"
            case ex.Unary(operator=operator, operand=operand):
                inner = self.value(operand)
                return f"({inner} {operator})" if operator.startswith("IS") else f"({operator} {inner})"
            case ex.Binary():
                return self.binary(node)
            case ex.Case(branches=branches, otherwise=otherwise):
                whens = " ".join(f"WHEN {self.value(test)} THEN {self.value(then)}" for test, then in branches)
                return f"(CASE {whens} ELSE {self.value(otherwise)} END)"
            case ex.Membership(operand=operand, choices=choices):
                side = self.time if self.is_time(operand) else self.value
                return f"({side(operand)} IN ({', '.join(side(choice) for choice in choices)}))"
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return self.choice(function, [self.value(argument) for argument in arguments])
            case ex.Call(function=function, arguments=arguments) if function in self.functions:
                return f"{self.functions[function]}({', '.join(self.value(argument) for argument in arguments)})"
            case ex.Cast(operand=operand, type=kind) if (written := self.cast(self.value(operand), kind)) is not None:
                return written
            case ex.JsonPath(document=document, path=path):
                return self.json_text(document, path)
        raise Unsupported(f"{self.product} cannot compute {_words(node)} in an expiration expression")

    def binary(self, node: ex.Binary) -> str:
        compares_times = node.operator in ex.COMPARISONS and (self.is_time(node.left) or self.is_time(node.right))
        side = self.time if compares_times else self.value
        return self.operation(node.operator, side(node.left), side(node.right))

    def is_time(self, node: Node) -> bool:
        match node:
            case ex.Now() | ex.Call(function="to_timestamp" | "date_trunc_day"):
                return True
            case ex.ColumnRef(name=name):
                return self.holds_time(self.column(name))
            case ex.Binary(operator="+" | "-", left=left, right=ex.Span()):
                return self.is_time(left) or isinstance(left, ex.ColumnRef)
            case ex.Cast(type=kind):
                return kind in ex.TIME_TYPES
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return any(self.is_time(argument) for argument in arguments)
            case ex.Case(branches=branches, otherwise=otherwise):
                return any(self.is_time(then) for _, then in branches) or self.is_time(otherwise)
            case _:
                return False

    def column(self, name: str) -> Column:
        column = self.table.column(name)
        if column is None:
            raise Unsupported(f"table {self.table.name} has no column {name}, which its expiration expression reads")
        return column

    def moment(self, text: str) -> datetime:
        """The instant that is written in an expression as text."""
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise Unsupported(f"{text!r} is no time; write it as 'YYYY-MM-DD HH:MM:SS'") from None
        return moment if moment.tzinfo else self.zoned(moment)

    # What engines write in their own way

    def zoned(self, wall: datetime) -> datetime:
        return wall.replace(tzinfo=UTC)

    def choice(self, function: str, arguments: list[str]) -> str:
        """One of `CHOICES`; GREATEST and LEAST leave NULLs out."""
        return f"{function}({', '.join(arguments)})"

    def operation(self, operator: str, left: str, right: str) -> str:
        return f"({left} {operator} {right})"

    @abstractmethod
    def quote(self, name: str) -> str: ...

    @abstractmethod
    def literal(self, text: str) -> str: ...

    @abstractmethod
    def holds_time(self, column: Column) -> bool:
        """Does the column's type alone say that it holds times?"""

    @abstractmethod
    def column_time(self, column: Column) -> str:
        """A column as an instant; raises Unsupported where its type can hold none."""

    @abstractmethod
    def instant(self, moment: datetime) -> str: ...

    @abstractmethod
    def shifted(self, instant: str, interval: Interval, sign: str) -> str: ...

    @abstractmethod
    def from_seconds(self, seconds: str) -> str: ...

    @abstractmethod
    def start_of_day(self, instant: str) -> str: ...

    @abstractmethod
    def text_time(self, text: str) -> str:
        """Text out of a row as an instant; NULL where it is none."""

    @abstractmethod
    def cast(self, value: str, kind: str) -> str | None:
        """To one of `CAST_TYPES` that is no time; None where the engine cannot."""

    @abstractmethod
    def json_text(self, document: Node, path: tuple[str | int, ...]) -> str: ...


def turned(arguments: list[str]) -> list[str]:
    """For servers whose GREATEST is NULL if one argument is: each one, or the next that is not NULL."""
    return [f"coalesce({', '.join(arguments[i:] + arguments[:i])})" for i in range(len(arguments))]


def json_path(path: tuple[str | int, ...]) -> str:
    """In the notation that MariaDB, MySQL and SQLite share: `$."key"[0]`."""
    parts = [f"[{key}]" if isinstance(key, int) else '."' + key.replace('"', '\\"') + '"' for key in path]
    return "$" + "".join(parts)


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
