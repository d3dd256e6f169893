"""An expiration expression as SQL: the walk over the tree, which is the same on every engine.

An engine says how it writes an instant and what can be done with one. Everything that is a time is written as an
instant, in whatever form that has there; the rest as it is. A value that says "never" counts as an instant that never
comes, so that no `coalesce` or `greatest` falls back to an earlier one. Comparisons see a column as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar, Self
from zoneinfo import ZoneInfo

from lapse.engines.plausible import BANDS, NEVER
from lapse.engines.values import HeldRows
from lapse.engines.walltime import later_reading
from lapse.errors import Unsupported
from lapse.model import expression as ex
from lapse.model.expression import Node
from lapse.model.interval import Interval
from lapse.model.table import MANAGED_COLUMN, Column, Table, TimeFormat


@dataclass(frozen=True, kw_only=True)
class ExpressionWriter(ABC):
    """`now` is SQL for the current instant, `zone` where wall-clock times are read.

    `managed` says that Lapse stamps the managed column, which is in UTC. `compared` writers are for both sides of a
    comparison. Without `never`, what says so is NULL: for telling which times there are.
    """

    table: Table
    now: str
    zone: str = "UTC"
    managed: bool = False
    compared: bool = False
    never: bool = True

    product: ClassVar[str]
    """How errors call the engine."""
    functions: ClassVar[Mapping[str, str]] = {name: name for name in ("lower", "upper", "length", "abs", "round")}
    booleans: ClassVar[tuple[str, str]] = ("FALSE", "TRUE")
    null_time: ClassVar[str] = "NULL"

    def time(self, node: Node) -> str:
        """SQL for `node` as an instant."""
        match node:
            case ex.Binary(operator="+" | "-" as sign, left=left, right=ex.Span(interval=interval)):
                start = self.wall(left)
                if start is not None:
                    return self._shifted_wall(left, start, interval, sign)
        wall = self.wall(node)
        if wall is not None:
            return self.from_wall(wall)
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
            case ex.Call(function="nullif", arguments=(left, right)):
                same = self.operation("=", self.for_comparing.time(left), self.for_comparing.time(right))
                return f"(CASE WHEN {same} THEN {self.null_time} ELSE {self.time(left)} END)"
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return self.choice(function, [self.time(argument) for argument in arguments])
            case ex.Call(function="to_timestamp", arguments=(seconds,)):
                number = self.value(seconds)
                return self.from_number(number, TimeFormat.UNIX, self.from_seconds(number))
            case ex.Cast(operand=operand, type="utc"):
                return replace(self, zone="UTC").time(operand)
            case ex.Cast(operand=operand, type=kind) if kind in ex.TIME_TYPES:
                return self.time(operand)
            case ex.JsonPath():
                return self.text_time(self.value(node))
        raise Unsupported(f"a time is needed here, and {_words(node)} is none")

    def truth(self, node: Node, what: str) -> str:
        """SQL for `node` as a condition; `what` is it the condition of?"""
        if not self.is_condition(node):
            raise Unsupported(
                f"{what} must be true or false, and {_words(node)} is neither",
                hint="compare it with something, as in: status = 'done'",
            )
        return f"({self.value(node)})"

    def held(self, hold: HeldRows) -> str:
        """SQL for "this hold is for the row"."""
        return "(1 = 1)" if hold.where is None else self.truth(hold.where, "what is held")

    def is_condition(self, node: Node) -> bool:
        match node:
            case ex.Boolean() | ex.Membership() | ex.Cast(type="boolean"):
                return True
            case ex.Unary(operator="IS NULL" | "IS NOT NULL"):
                return True
            case ex.Unary(operator="NOT", operand=operand):
                return self.is_condition(operand)
            case ex.Binary(operator="AND" | "OR", left=left, right=right):
                return self.is_condition(left) and self.is_condition(right)
            case ex.Binary(operator=operator):
                return operator in ex.COMPARISONS or operator == "LIKE"
            case ex.ColumnRef(name=name):
                return self.column(name).type.lower() in ("boolean", "bool", "tinyint(1)")
            case _:
                return False

    def wall(self, node: Node) -> str | None:
        """SQL for `node` as wall-clock time, which it stays through arithmetic; None if it is an instant already."""
        match node:
            case ex.ColumnRef(name=name):
                return self.wall_column(self.column(name))
            case ex.Binary(operator="+" | "-" as sign, left=left, right=ex.Span(interval=interval)):
                wall = self.wall(left)
                return None if wall is None else self.wall_shifted(wall, interval, sign)
            case ex.Binary(operator="+", left=ex.Span() as span, right=right):
                return self.wall(ex.Binary("+", right, span))
            case ex.Cast(operand=operand, type="timestamp"):
                return self.wall(operand) or self.to_wall(self.time(operand))
            case ex.Call(function="date_trunc_day", arguments=(operand,)) | ex.Cast(operand=operand, type="date"):
                return self.start_of_day(self.wall(operand) or self.to_wall(self.time(operand)))
            case _:
                return None

    def _shifted_wall(self, left: Node, wall: str, interval: Interval, sign: str) -> str:
        """Once the clock shows it and the interval has passed, whichever is later."""
        shown = self.from_wall(self.wall_shifted(wall, interval, sign))
        if self.zone == "UTC" or not interval.micros:
            return shown
        calendar = self.wall_shifted(wall, Interval(months=interval.months), sign)
        start = self.from_wall(calendar) if interval.months else self.time(left)
        return f"GREATEST({shown}, {self.shifted(start, Interval(micros=interval.micros), sign)})"

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
            case ex.Unary(operator="IS NULL" | "IS NOT NULL" as operator, operand=ex.ColumnRef(name=name)):
                return f"({self.quote(self.column(name).name)} {operator})"
            case ex.Unary(operator=operator, operand=operand):
                inner = self.value(operand)
                return f"({inner} {operator})" if operator.startswith("IS") else self.prefixed(operator, inner)
            case ex.Binary():
                return self.binary(node)
            case ex.Case(branches=branches, otherwise=otherwise):
                whens = " ".join(f"WHEN {self.value(test)} THEN {self.value(then)}" for test, then in branches)
                return f"(CASE {whens} ELSE {self.value(otherwise)} END)"
            case ex.Membership(operand=operand, choices=choices):
                side = self.for_comparing.time if self.is_time(operand) else self.value
                return self.membership(side(operand), [side(choice) for choice in choices])
            case ex.Call(function="nullif", arguments=(left, right)):
                kept = self.value(left)
                return f"(CASE WHEN {self.operation('=', kept, self.value(right))} THEN NULL ELSE {kept} END)"
            case ex.Call(function=function, arguments=arguments) if function in ex.CHOICES:
                return self.choice(function, [self.value(argument) for argument in arguments])
            case ex.Call(function=function, arguments=arguments) if function in self.functions:
                return f"{self.functions[function]}({', '.join(self.value(argument) for argument in arguments)})"
            case ex.Cast(operand=operand, type=kind) if (written := self.cast(self.value(operand), kind)) is not None:
                return written
            case ex.JsonPath(document=document, path=path):
                return self.json_text(document, path)
        raise Unsupported(f"{self.product} cannot compute {_words(node)} here")

    def binary(self, node: ex.Binary) -> str:
        compares_times = node.operator in ex.COMPARISONS and (self.is_time(node.left) or self.is_time(node.right))
        side = self.for_comparing.time if compares_times else self.value
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
            raise Unsupported(f"table {self.table.name} has no column {name}, which the expression reads")
        return column

    def moment(self, text: str) -> datetime:
        """The instant that is written in an expression as text."""
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise Unsupported(f"{text!r} is no time; write it as 'YYYY-MM-DD HH:MM:SS'") from None
        return moment.astimezone(UTC) if moment.tzinfo else later_reading(moment, ZoneInfo(self.zone))

    @property
    def for_comparing(self) -> Self:
        return replace(self, compared=True)

    def is_managed(self, column: Column) -> bool:
        """Stamped by Lapse, so in UTC."""
        return self.managed and column.name == MANAGED_COLUMN

    def sane(self, value: str, band: tuple[str, str], then: str) -> str:
        """`then` where the value lies in the band, the second bound excluded; otherwise it never comes."""
        low, high = self.operation(">=", value, band[0]), self.operation("<", value, band[1])
        return f"(CASE WHEN {low} AND {high} THEN {then}{self.otherwise(value, self.instant(NEVER))} END)"

    def otherwise(self, value: str, never: str) -> str:
        """The end of a CASE whose branches are for times."""
        return f" WHEN {value} IS NOT NULL THEN {never}" if self.never else ""

    def from_number(self, number: str, fmt: TimeFormat, then: str) -> str:
        low, high = BANDS[fmt]
        return self.sane(number, (str(low), str(high)), then)

    # What engines write in their own way

    def wall_column(self, column: Column) -> str | None:
        """A column that stores wall-clock time."""
        return None

    def wall_shifted(self, wall: str, interval: Interval, sign: str) -> str:
        return self.shifted(wall, interval, sign)

    def from_wall(self, wall: str) -> str:
        """The instant of a wall-clock time: of two readings, and in a gap, the later one."""
        return wall

    def to_wall(self, instant: str) -> str:
        return instant

    def prefixed(self, operator: str, operand: str) -> str:
        return f"({operator} {operand})"

    def membership(self, operand: str, choices: list[str]) -> str:
        return f"({operand} IN ({', '.join(choices)}))"

    def choice(self, function: str, arguments: list[str]) -> str:
        """One of `CHOICES` but nullif; GREATEST and LEAST leave NULLs out."""
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
    def start_of_day(self, wall: str) -> str: ...

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
        case ex.ColumnRef(name=name):
            return f"column {name}"
        case ex.Text(value=text):
            return repr(text)
        case _:
            return "this part of it"
