"""The expiration expression as a tree: small enough that every engine can write it in its own SQL.

The tree has no sub-query, no aggregate, no volatile function and no second statement, because it has no node for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lapse.model.interval import Interval


@dataclass(frozen=True, slots=True)
class ColumnRef:
    name: str


@dataclass(frozen=True, slots=True)
class Text:
    value: str


@dataclass(frozen=True, slots=True)
class Number:
    """Digits as written, so that no precision is lost."""

    digits: str


@dataclass(frozen=True, slots=True)
class Boolean:
    value: bool


@dataclass(frozen=True, slots=True)
class Null:
    pass


@dataclass(frozen=True, slots=True)
class Span:
    """An interval literal."""

    interval: Interval


@dataclass(frozen=True, slots=True)
class Now:
    """The current time; within a job it is the job's cutoff, so one job sees one time."""


@dataclass(frozen=True, slots=True)
class Unary:
    """`operator` is one of `-`, `NOT`, `IS NULL`, `IS NOT NULL`."""

    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    """`operator` is one of `BINARY_OPERATORS`."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE WHEN condition THEN value … ELSE otherwise END`."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node


@dataclass(frozen=True, slots=True)
class Membership:
    """`operand IN (choices)`."""

    operand: Node
    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """`function` is one of `FUNCTIONS`, in lower case."""

    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """`type` is one of `CAST_TYPES` or `TIME_TYPES`."""

    operand: Node
    type: str


@dataclass(frozen=True, slots=True)
class JsonPath:
    """`document ->> key`, text out of a JSON document; `path` holds object keys and array indexes."""

    document: Node
    path: tuple[str | int, ...]


Node = (
    ColumnRef
    | Text
    | Number
    | Boolean
    | Null
    | Span
    | Now
    | Unary
    | Binary
    | Case
    | Membership
    | Call
    | Cast
    | JsonPath
)

COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"})
BINARY_OPERATORS = COMPARISONS | {"+", "-", "*", "/", "%", "AND", "OR", "||", "LIKE"}
FUNCTIONS = frozenset("coalesce nullif greatest least lower upper length abs round to_timestamp date_trunc_day".split())
CHOICES = frozenset({"coalesce", "greatest", "least", "nullif"})
"""Functions whose result has the type of their arguments."""
CAST_TYPES = frozenset("timestamptz timestamp date interval integer float text boolean".split())
TIME_TYPES = frozenset({"timestamptz", "timestamp", "date", "utc"})
"""`utc` is AT TIME ZONE 'UTC': the same instant, or wall-clock time that is read in UTC whatever the policy's zone."""


def children(node: Node) -> Iterator[Node]:
    match node:
        case Unary(operand=operand) | Cast(operand=operand):
            yield operand
        case Binary(left=left, right=right):
            yield from (left, right)
        case Case(branches=branches, otherwise=otherwise):
            for condition, value in branches:
                yield from (condition, value)
            yield otherwise
        case Membership(operand=operand, choices=choices):
            yield from (operand, *choices)
        case Call(arguments=arguments):
            yield from arguments
        case JsonPath(document=document):
            yield document
        case _:
            return


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from walk(child)


def columns(node: Node) -> tuple[str, ...]:
    """Names of the columns the expression reads, in order of first use."""
    return tuple(dict.fromkeys(part.name for part in walk(node) if isinstance(part, ColumnRef)))
