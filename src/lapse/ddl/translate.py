"""sqlglot's tree to Lapse's: every node that is let in is named here, all others are refused.

Nodes are told by the name of their class, so this module does not import sqlglot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from lapse.ddl.vocabulary import FUNCTIONS, NOW, NOW_FUNCTIONS, OPERATORS, OTHER_FUNCTIONS, TYPES, why_not
from lapse.errors import InvalidValue
from lapse.model import interval
from lapse.model.expression import (
    Binary,
    Boolean,
    Call,
    Case,
    Cast,
    ColumnRef,
    JsonPath,
    Membership,
    Node,
    Now,
    Null,
    Number,
    Span,
    Text,
    Unary,
)
from lapse.model.suggestion import suggest_or_list

MAX_DEPTH = 100


class Refusal(Exception):
    """An expression that Lapse does not take; `offset` is where in its text."""

    def __init__(self, message: str, offset: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.hint = hint


class Translator:
    def __init__(self, text: str, columns: Collection[str] | None) -> None:
        self._text = text
        self._columns = columns
        self._depth = 0

    def translate(self, node: Any) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Refusal("the expression is nested too deeply", 0)
        kind = type(node).__name__
        if kind in OPERATORS:
            result: Node = Binary(OPERATORS[kind], self.translate(node.this), self.translate(node.expression))
        elif kind in FUNCTIONS:
            result = Call(FUNCTIONS[kind], self._arguments(node))
        elif kind in NOW:
            result = Now()
        elif kind in _HANDLERS:
            result = _HANDLERS[kind](self, node)
        else:
            raise self._refuse(node)
        self._depth -= 1
        return result

    def _refuse(self, node: Any, message: str | None = None, hint: str | None = None) -> Refusal:
        offset = self._offset(node)
        function = re.match(r"(\w+)\s*\(", self._text[offset:])
        return Refusal(message or why_not(node, function[1] if function else ""), offset, hint)

    def _offset(self, node: Any) -> int:
        """Where a node stands; sqlglot remembers that of names and functions only."""
        for part in node.walk():
            start = part.meta.get("start")
            if start is not None:
                return max(0, min(int(start) - len("SELECT\n"), len(self._text)))
        return 0

    def _arguments(self, node: Any) -> tuple[Node, ...]:
        extra = [name for name in ("decimals", "expression") if node.args.get(name) is not None]
        parts = [node.this, *(node.args[name] for name in extra), *(node.args.get("expressions") or [])]
        return tuple(self.translate(part) for part in parts)

    def column(self, node: Any) -> Node:
        if node.args.get("table") or type(node.this).__name__ != "Identifier":
            raise self._refuse(node, "name a column alone, without its table")
        name: str = node.this.this
        if self._columns is None or name in self._columns:
            return ColumnRef(name)
        folded = [column for column in self._columns if column.lower() == name.lower()]
        if len(folded) == 1:
            return ColumnRef(folded[0])
        hint = suggest_or_list(name, sorted(self._columns), "its columns are")
        raise self._refuse(node, f"there is no column {name!r}", hint)

    def literal(self, node: Any) -> Node:
        return Text(node.this) if node.is_string else Number(node.this)

    def sum(self, node: Any) -> Node:
        """`+` and `-`: beside a time, a string is an interval, as in CockroachDB's `x + '5 minutes'`."""
        operator = "+" if type(node).__name__ == "Add" else "-"
        left, right = self.translate(node.this), self.translate(node.expression)
        if isinstance(right, Text):
            right = self._span(right.value, node)
        elif isinstance(left, Text) and operator == "+":
            left = self._span(left.value, node)
        return Binary(operator, left, right)

    def _span(self, text: str, node: Any) -> Span:
        try:
            return Span(interval.parse(text, name="interval"))
        except InvalidValue as problem:
            raise self._refuse(node, f"{text!r} is no interval: {problem.allowed}") from None

    def interval(self, node: Any) -> Node:
        unit = node.args.get("unit")
        return self._interval_of(node, node.this, unit.name if unit is not None else "")

    def _interval_of(self, node: Any, quantity: Any, unit: str) -> Node:
        while type(quantity).__name__ == "Paren":
            quantity = quantity.this
        negative = type(quantity).__name__ == "Neg" and type(quantity.this).__name__ == "Literal"
        if type(quantity).__name__ != "Literal" and not negative:
            # INTERVAL n DAY with n from the row.
            return Binary("*", self._span(f"1 {unit}", node), self.translate(quantity))
        text = f"-{quantity.this.this}" if negative else quantity.this
        if not unit:
            return self._span(text, node)
        try:
            composite = unit.upper() in interval.MYSQL_UNITS
            return Span(interval.from_unit(text, unit) if composite else interval.parse(f"{text} {unit}"))
        except InvalidValue as problem:
            raise self._refuse(node, f"{text} {unit}: {problem.allowed}") from None

    def date_add(self, node: Any) -> Node:
        """`DATE_ADD(x, INTERVAL 5 DAY)` and `DATE_SUB`."""
        operator = "-" if type(node).__name__ == "DateSub" else "+"
        amount, unit = node.expression, node.args.get("unit")
        if type(amount).__name__ == "Interval":
            return Binary(operator, self.translate(node.this), self.translate(amount))
        return Binary(
            operator, self.translate(node.this), self._interval_of(node, amount, unit.name if unit else "DAY")
        )

    def cast(self, node: Any) -> Node:
        kind = str(node.args["to"].this.value).upper()
        operand = self.translate(node.this)
        if kind in ("JSON", "JSONB"):
            return operand
        target = next((name for name, kinds in TYPES.items() if kind in kinds), None)
        if target is None:
            raise self._refuse(node, f"a cast to {kind} is not supported", f"known types: {', '.join(TYPES)}")
        if target == "interval" and isinstance(operand, Text):
            return self._span(operand.value, node)
        return Cast(operand, target)

    def at_time_zone(self, node: Any) -> Node:
        zone = node.args["zone"]
        if type(zone).__name__ != "Literal" or zone.this.upper() != "UTC":
            raise self._refuse(node, "AT TIME ZONE takes 'UTC' only", "set ttl_time_zone for columns in another zone")
        return Cast(self.translate(node.this), "utc")

    def condition(self, node: Any) -> Node:
        otherwise = node.args.get("false")
        branch = (self.translate(node.this), self.translate(node.args["true"]))
        return Case((branch,), self.translate(otherwise) if otherwise is not None else Null())

    def case(self, node: Any) -> Node:
        subject = self.translate(node.this) if node.this is not None else None
        branches = []
        for branch in node.args["ifs"]:
            test = self.translate(branch.this)
            branches.append(
                (test if subject is None else Binary("=", subject, test), self.translate(branch.args["true"]))
            )
        otherwise = node.args.get("default")
        return Case(tuple(branches), self.translate(otherwise) if otherwise is not None else Null())

    def negation(self, node: Any) -> Node:
        operand = self.translate(node.this)
        return _negated(operand)

    def test(self, node: Any) -> Node:
        """`IS [NOT] NULL`, `IS [NOT] TRUE`."""
        negate = bool(node.args.get("negate"))
        expected = self.translate(node.expression)
        operand = self.translate(node.this)
        if isinstance(expected, Null):
            return Unary("IS NOT NULL" if negate else "IS NULL", operand)
        if isinstance(expected, Boolean):
            return Binary("IS DISTINCT FROM" if negate else "IS NOT DISTINCT FROM", operand, expected)
        raise self._refuse(node)

    def membership(self, node: Any) -> Node:
        if node.args.get("query") is not None or node.args.get("unnest") is not None or not node.expressions:
            raise self._refuse(node, "sub-queries are not allowed in an expression")
        found = Membership(self.translate(node.this), tuple(self.translate(choice) for choice in node.expressions))
        return _negated(found) if node.args.get("negate") else found

    def between(self, node: Any) -> Node:
        operand = self.translate(node.this)
        if node.args.get("symmetric"):
            raise self._refuse(node, "BETWEEN SYMMETRIC is not supported in an expression")
        low, high = self.translate(node.args["low"]), self.translate(node.args["high"])
        found = Binary("AND", Binary(">=", operand, low), Binary("<=", operand, high))
        return _negated(found) if node.args.get("negate") else found

    def like(self, node: Any) -> Node:
        found = Binary("LIKE", self.translate(node.this), self.translate(node.expression))
        return _negated(found) if node.args.get("negate") else found

    def json(self, node: Any) -> Node:
        document = self.translate(node.this)
        steps = self._json_steps(node)
        if isinstance(document, JsonPath):
            return JsonPath(document.document, document.path + steps)
        return JsonPath(document, steps)

    def _json_steps(self, node: Any) -> tuple[str | int, ...]:
        path = node.expression
        kind = type(path).__name__
        if kind == "Literal":
            return (path.this,) if path.is_string else (int(path.this),)
        if kind != "JSONPath" or node.args.get("expressions"):
            raise self._refuse(node, "a JSON path must be written out")
        steps: list[str | int] = []
        for part in path.expressions:
            part_kind = type(part).__name__
            if part_kind in ("JSONPathKey", "JSONPathSubscript") and isinstance(part.this, str | int):
                steps.extend(_dollar_path(part.this) if isinstance(part.this, str) else (part.this,))
            elif part_kind != "JSONPathRoot":
                raise self._refuse(node, "a JSON path may have keys and indexes only")
        return tuple(steps)

    def truncation(self, node: Any) -> Node:
        if node.args["unit"].name.upper() != "DAY" or node.args.get("zone"):
            raise self._refuse(node, "date_trunc takes 'day' only")
        return Call("date_trunc_day", (self.translate(node.this),))

    def unix_time(self, node: Any) -> Node:
        if any(value is not None for name, value in node.args.items() if name != "this"):
            raise self._refuse(node, "to_timestamp takes unix seconds and nothing else")
        return Call("to_timestamp", (self.translate(node.this),))

    def call(self, node: Any) -> Node:
        """A function that sqlglot has no class for."""
        name = str(node.this).lower()
        arguments = node.expressions
        if name in NOW_FUNCTIONS and not arguments:
            return Now()
        if name in OTHER_FUNCTIONS and len(arguments) == 1:
            return Call(OTHER_FUNCTIONS[name], (self.translate(arguments[0]),))
        if name == "json_unquote" and len(arguments) == 1:
            inner = self.translate(arguments[0])
            if isinstance(inner, JsonPath):
                return inner
        raise self._refuse(node)


def _negated(node: Node) -> Node:
    if isinstance(node, Unary) and node.operator == "IS NULL":
        return Unary("IS NOT NULL", node.operand)
    if isinstance(node, Binary) and node.operator == "IS NOT DISTINCT FROM":
        return Binary("IS DISTINCT FROM", node.left, node.right)
    return Unary("NOT", node)


def _dollar_path(key: str) -> tuple[str | int, ...]:
    """MySQL's and SQLite's `'$.a.b[0]'` where PostgreSQL would have a plain key."""
    if not re.fullmatch(r"\$(?:\.\w+|\[\d+\])+", key):
        return (key,)
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", key)
    return tuple(name or int(index) for name, index in steps)


_HANDLERS: dict[str, Callable[[Translator, Any], Node]] = {
    "Column": Translator.column,
    "Literal": Translator.literal,
    "Boolean": lambda _, node: Boolean(bool(node.this)),
    "Null": lambda _, __: Null(),
    "Paren": lambda self, node: self.translate(node.this),
    "Neg": lambda self, node: Unary("-", self.translate(node.this)),
    "Not": Translator.negation,
    "Add": Translator.sum,
    "Sub": Translator.sum,
    "Interval": Translator.interval,
    "DateAdd": Translator.date_add,
    "DateSub": Translator.date_add,
    "Cast": Translator.cast,
    "AtTimeZone": Translator.at_time_zone,
    "If": Translator.condition,
    "Case": Translator.case,
    "Is": Translator.test,
    "In": Translator.membership,
    "Between": Translator.between,
    "Like": Translator.like,
    "JSONExtract": Translator.json,
    "JSONExtractScalar": Translator.json,
    "TimestampTrunc": Translator.truncation,
    "DateTrunc": Translator.truncation,
    "UnixToTime": Translator.unix_time,
    "CurrentDate": lambda _, __: Cast(Now(), "date"),
    "Anonymous": Translator.call,
}
