"""Expiration expressions: text to the tree of `model.expression`, and nothing that the tree has no node for.

sqlglot does the reading; it is imported when the first expression comes, since plain statements never need it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lapse.ddl.lexer import TokenKind, tokenize
from lapse.ddl.literal import is_terminated
from lapse.ddl.script import place
from lapse.ddl.translate import Refusal, Translator
from lapse.errors import TtlSyntaxError
from lapse.model.expression import Binary, ColumnRef, Node, Span
from lapse.model.interval import Interval

MAX_LENGTH = 10_000
"""Characters; longer ones are a mistake, and reading them would take long."""

_FORBIDDEN_SIGNS = {
    ";": "a second statement is not allowed in an expression",
    "?": "parameters are not allowed in an expression",
    "$": "parameters are not allowed in an expression",
    ":": "parameters are not allowed in an expression",
    "@": "variables are not allowed in an expression",
    "@@": "variables are not allowed in an expression",
    ":=": "assignments are not allowed in an expression",
    "{": "an expression has no {",
    "}": "an expression has no }",
}
_FORBIDDEN_WORDS = {
    "SELECT": "sub-queries",
    "VALUES": "sub-queries",
    "EXISTS": "sub-queries",
    "OVER": "window functions",
}


def parse_expression(text: str, *, columns: Collection[str] | None) -> Node:
    """Read one scalar expression; where `columns` is given, it may use those only.

    CockroachDB's and PostgreSQL's spelling is tried first, then MySQL's.
    """
    if len(text) > MAX_LENGTH:
        raise TtlSyntaxError(f"an expression may have at most {MAX_LENGTH} characters", line=1, column=1)
    _check_tokens(text)
    try:
        return Translator(text, columns).translate(_read(text))
    except Refusal as refusal:
        line, column = place(text, refusal.offset)
        raise TtlSyntaxError(refusal.message, line=line, column=column, hint=refusal.hint) from None
    except RecursionError:
        raise TtlSyntaxError("the expression is nested too deeply", line=1, column=1) from None


def recognise_column(node: Node) -> tuple[str, Interval] | None:
    """`column` and `column + interval`, which an index on the column can serve; None for anything else."""
    match node:
        case ColumnRef(name=name):
            return name, Interval()
        case Binary(operator="+", left=ColumnRef(name=name), right=Span(interval=after)):
            return name, after
        case Binary(operator="+", left=Span(interval=after), right=ColumnRef(name=name)):
            return name, after
        case _:
            return None


def _dialect_of(text: str) -> str:
    uses_backticks = any(t.kind is TokenKind.QUOTED and t.text.startswith("`") for t in tokenize(text, "postgres"))
    return "mysql" if uses_backticks else "postgres"


def _check_tokens(text: str) -> None:
    """Refuse, before anything else reads the text, what could make two readers see two different expressions."""
    previous = ""
    dialect = _dialect_of(text)
    for token in tokenize(text, dialect):
        problem = None
        if token.kind is TokenKind.COMMENT:
            problem = "comments are not allowed in an expression"
        elif not is_terminated(token, dialect):
            problem = "this quote is never closed"
        elif token.key in _FORBIDDEN_SIGNS:
            problem = _FORBIDDEN_SIGNS[token.key]
        elif token.key in _FORBIDDEN_WORDS and previous != ".":
            problem = f"{_FORBIDDEN_WORDS[token.key]} are not allowed in an expression"
        if problem:
            line, column = place(text, token.start)
            raise TtlSyntaxError(problem, line=line, column=column)
        if token.kind is not TokenKind.SPACE:
            previous = token.key


def _read(text: str) -> Any:
    """sqlglot's tree. The text is read as the one thing a SELECT selects, so that no other statement can come of it."""
    from sqlglot import ErrorLevel, parse
    from sqlglot.errors import SqlglotError

    # The same length as before, so that positions stay true.
    plain = text.replace(":::", ":: ")
    preferred = _dialect_of(text)
    problem: SqlglotError | None = None
    for dialect in (preferred, "mysql"):
        try:
            statements = parse(f"SELECT\n{plain}", read=dialect, error_level=ErrorLevel.IMMEDIATE)
        except SqlglotError as error:
            problem = problem or error
            continue
        return _only_projection(statements)
    raise _located(problem)


def _only_projection(statements: list[Any]) -> Any:
    select = statements[0]
    extra = [name for name, value in select.args.items() if value and name != "expressions"]
    if len(statements) != 1 or type(select).__name__ != "Select" or extra:
        raise TtlSyntaxError("expected one expression and nothing else", line=1, column=1)
    if len(select.expressions) != 1:
        found = len(select.expressions)
        raise TtlSyntaxError(f"expected one expression, found {found}", line=1, column=1)
    return select.expressions[0]


def _located(problem: Any) -> TtlSyntaxError:
    details = getattr(problem, "errors", None) or [{}]
    line, column = details[0].get("line") or 2, details[0].get("col") or 1
    near = (details[0].get("highlight") or "").strip()
    # sqlglot counts to the last character of what it stumbled over.
    message = "is not a valid expression" + (f" at {near!r}" if near else "")
    return TtlSyntaxError(message, line=max(1, line - 1), column=max(1, column - len(near) + 1))
