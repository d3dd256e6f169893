"""What the TTL clauses of one statement say together, contradictions refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lapse.ddl.cursor import Span, TokenCursor
from lapse.ddl.lexer import Token
from lapse.ddl.script import place
from lapse.errors import PolicyConflict, TtlSyntaxError
from lapse.model import parameters
from lapse.model.interval import Interval
from lapse.model.policy import PolicyChange, removed_by_reset


class Origin(StrEnum):
    """The dialect a clause is written in."""

    COCKROACH = "cockroach"
    TIDB = "tidb"
    MYROCKS = "myrocks"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Assignment:
    value: Any
    origin: Origin
    label: str
    token: Token


_EXPIRY = ("expire_after", "expression", "column", "interval")


class TtlClauses:
    """Clauses are added in the order they are written; of a repeated one the last wins."""

    def __init__(self, cursor: TokenCursor, *, cut_comments: bool | None = None) -> None:
        self.cuts: list[Span] = []
        # MySQL has table comments, so there the comment is the user's to keep; elsewhere it would be a syntax error.
        self.cut_comments = cursor.dialect != "mysql" if cut_comments is None else cut_comments
        self._cursor = cursor
        self._set: dict[str, _Assignment] = {}
        self._reset: dict[str, Token] = {}
        self._removal: Token | None = None
        self._notices: dict[str, None] = {}
        self._origins: set[Origin] = set()
        self._replaces_expiry = False
        self._comment: str | None = None

    @property
    def found(self) -> bool:
        return bool(self._origins)

    @property
    def origins(self) -> frozenset[Origin]:
        return frozenset(self._origins)

    def assign(self, field: str, value: Any, *, origin: Origin, label: str, token: Token) -> None:
        self._origins.add(origin)
        earlier = self._set.get(field)
        if earlier and earlier.origin is not origin and earlier.value != value:
            raise self._conflict(f"{earlier.label} and {label} contradict each other", token)
        self._set[field] = _Assignment(value=value, origin=origin, label=label, token=token)

    def assign_parameter(self, name: str, text: str, token: Token) -> None:
        """A storage parameter other than the expression."""
        parameter = parameters.find(name)
        value = parameter.parse(text, parameter.name)
        self._origins.add(Origin.COCKROACH)
        if parameter.notice:
            self._notices[parameter.notice] = None
        if parameter.field:
            self.assign(parameter.field, value, origin=Origin.COCKROACH, label=parameter.name, token=token)

    def assign_expression(self, text: str, column: tuple[str, Interval] | None, token: Token) -> None:
        label = "ttl_expiration_expression"
        for field in ("expression", "column", "interval"):
            if field in self._set and self._set[field].origin is Origin.COCKROACH:
                del self._set[field]
        if column is None:
            self.assign("expression", text, origin=Origin.COCKROACH, label=label, token=token)
            return
        self.assign("column", column[0], origin=Origin.COCKROACH, label=label, token=token)
        self.assign("interval", column[1], origin=Origin.COCKROACH, label=label, token=token)

    def assign_column(self, column: str, interval: Interval, token: Token) -> None:
        """TiDB's `TTL = column + INTERVAL`."""
        self.assign("column", column, origin=Origin.TIDB, label="TTL", token=token)
        self.assign("interval", interval, origin=Origin.TIDB, label="TTL", token=token)

    def assign_comment(self, text: str, fields: Mapping[str, Any], token: Token, *, replaces: bool) -> None:
        """MyRocks's comment says all there is to say about expiry; in an ALTER it `replaces` what was said before."""
        self._comment = text
        self._replaces_expiry = replaces
        for field in [field for field, assignment in self._set.items() if assignment.origin is Origin.MYROCKS]:
            del self._set[field]
        for field, value in fields.items():
            self.assign(field, value, origin=Origin.MYROCKS, label="COMMENT", token=token)

    def reset(self, name: str, token: Token) -> None:
        self._origins.add(Origin.COCKROACH)
        if parameters.find(name).name == "ttl":
            self._removal = token
            return
        for field in removed_by_reset([name]):
            self._reset[field] = token

    def remove(self, token: Token) -> None:
        self._origins.add(Origin.TIDB)
        self._removal = token

    def change(self) -> PolicyChange:
        self._refuse_contradictions()
        reset = set(self._reset)
        if self._replaces_expiry:
            reset |= {*_EXPIRY, "partitions"} - set(self._set)
        return PolicyChange(
            set={} if self._removal else {field: assignment.value for field, assignment in self._set.items()},
            reset=frozenset() if self._removal else frozenset(reset),
            remove=self._removal is not None,
            notices=tuple(self._notices),
            comment=None if self.cut_comments or self._origins != {Origin.MYROCKS} else self._comment,
        )

    def _refuse_contradictions(self) -> None:
        if self._removal and self._set:
            label = next(iter(self._set.values())).label
            raise self._conflict(f"{label} is set and TTL is removed in one statement; keep one", self._removal)
        for field, token in self._reset.items():
            if field in self._set:
                raise self._conflict(f"{self._set[field].label} is both set and reset in one statement", token)
        expiry = [self._set[field] for field in _EXPIRY if field in self._set]
        first = next((a for a in expiry if a.origin is not expiry[0].origin), None)
        if first:
            raise self._conflict(
                f"{expiry[0].label} and {first.label} both say when rows expire; keep one", first.token
            )
        if "expression" in self._set and "column" in self._set:
            raise self._conflict("both an expiration expression and TTL are set; keep one", self._set["column"].token)
        if "job_cron" in self._set and "job_interval" in self._set:
            label = self._set["job_interval"].label
            raise self._conflict(f"both ttl_job_cron and {label} are set; keep one", self._set["job_interval"].token)

    def _conflict(self, message: str, token: Token) -> PolicyConflict:
        line, column = place(self._cursor.piece.source, token.start)
        return PolicyConflict(f"line {line}, column {column}: {message}")


def within(cursor: TokenCursor, token: Token, label: str, problem: TtlSyntaxError) -> TtlSyntaxError:
    """An error inside a string, told with the place of the string in the statement."""
    return cursor.problem(f"{label}: {problem.message}", token, hint=problem.hint)
