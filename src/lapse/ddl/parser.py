"""SQL text to statements.

Every statement of a connection passes here, so what cannot concern Lapse is told by its first word and leaves at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lapse.ddl.alter import parse_alter_table
from lapse.ddl.control import (
    parse_comment_on,
    parse_control_job,
    parse_drop_table,
    parse_rename_table,
    parse_set_global,
    parse_show,
)
from lapse.ddl.create import parse_create_table
from lapse.ddl.cursor import Cursor
from lapse.ddl.holds import parse_release
from lapse.ddl.lexer import DIALECTS, SPACES, first_semicolon
from lapse.ddl.query import parse_catalog_query
from lapse.ddl.script import Piece, pieces, place
from lapse.errors import InvalidValue, TtlSyntaxError
from lapse.model.statement import PassThrough, Statement


def parse(text: str, dialect: str) -> list[Statement]:
    """The statements of a text, in order; `dialect` is "sqlite", "postgres" or "mysql"."""
    if dialect not in DIALECTS:
        raise InvalidValue("dialect", dialect, f"must be one of {', '.join(DIALECTS)}")
    quick = _pass_quickly(text, dialect)
    if quick is not None:
        return [quick]
    statements: list[Statement] = []
    for piece in pieces(text, dialect):
        statements.extend(_parse_piece(piece))
    return statements


def parse_one(text: str, dialect: str) -> Statement:
    """For a text that holds exactly one statement."""
    statements = parse(text, dialect)
    if len(statements) != 1:
        found = "no statement" if not statements else f"{len(statements)} statements"
        line, column = (statements[1].line, statements[1].column) if statements else (1, 1)
        raise TtlSyntaxError(f"expected one statement, found {found}", line=line, column=column)
    return statements[0]


_LEADING_VERB = re.compile(f"[{SPACES}]*([A-Za-z]+)")


def _pass_quickly(text: str, dialect: str) -> PassThrough | None:
    """One ordinary statement, told without looking at its tokens; None when that takes a closer look."""
    match = _LEADING_VERB.match(text)
    if match is None:
        return None
    verb = match[1].upper()
    if (verb in _PARSERS and _may_concern(verb, text)) or verb == "DELIMITER":
        return None
    body = text.strip(SPACES)
    if ";" in body:
        single = _single(body, verb, dialect)
        if single is None:
            return None
        body = single
    if match.start(1) == 0:
        return PassThrough(text=body, verb=verb)
    line, column = place(text, match.start(1))
    return PassThrough(text=body, line=line, column=column, verb=verb)


def _single(body: str, verb: str, dialect: str) -> str | None:
    """The statement without the `;` that ends it; None when there may be more than one."""
    if verb in _HAVE_BODIES or (dialect == "postgres" and "/*" in body):
        return None
    end = first_semicolon(body, dialect)
    return body[:end].rstrip(SPACES) if end >= len(body) - 1 else None


_HAVE_BODIES = frozenset({"CREATE", "ALTER", "BEGIN"})
"""A `;` may stand inside one of these; and PostgreSQL's comments nest, which one expression cannot follow."""


def _may_concern(verb: str, text: str) -> bool:
    """A cheap look for the words without which a statement of this kind is not for Lapse."""
    if verb in ("SELECT", "WITH"):
        lowered = text.lower()
        return "reloptions" in lowered or "@@" in lowered or ("[" in lowered and "show" in lowered)
    if verb == "CREATE":
        lowered = text.lower()
        return "table" in lowered and ("ttl" in lowered or "replace" in lowered)
    return verb != "COMMENT" or "ttl_" in text.lower()


def _parse_piece(piece: Piece) -> list[Statement]:
    parser = _PARSERS.get(piece.verb)
    if parser is not None and _may_concern(piece.verb, piece.text):
        found = parser(Cursor(piece))
        if found:
            return found if isinstance(found, list) else [found]
    return [PassThrough(text=piece.text, line=piece.line, column=piece.column, verb=piece.verb)]


def _set_global(cursor: Cursor) -> list[Statement]:
    return [*parse_set_global(cursor)]


_PARSERS: dict[str, Callable[[Cursor], Statement | list[Statement] | None]] = {
    "CREATE": parse_create_table,
    "ALTER": parse_alter_table,
    "COMMENT": parse_comment_on,
    "DROP": parse_drop_table,
    "RENAME": parse_rename_table,
    "SHOW": parse_show,
    "PAUSE": parse_control_job,
    "RESUME": parse_control_job,
    "CANCEL": parse_control_job,
    "ADMIN": parse_control_job,
    "RELEASE": parse_release,
    "SET": _set_global,
    "SELECT": parse_catalog_query,
    "WITH": parse_catalog_query,
}
