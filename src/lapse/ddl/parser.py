"""SQL text to statements.

Every statement of a connection passes here, so what cannot concern Lapse is told by its first word and leaves at once;
the parsers of those that do are loaded when one comes.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from lapse.ddl.lexer import DIALECTS, SPACES, first_semicolon
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
    if piece.verb in _PARSERS and _may_concern(piece.verb, piece.text):
        from lapse.ddl.cursor import TokenCursor

        found = parser_of(piece.verb)(TokenCursor(piece))
        if found:
            return [*found] if isinstance(found, (list, tuple)) else [found]
    return [PassThrough(text=piece.text, line=piece.line, column=piece.column, verb=piece.verb)]


def parser_of(verb: str) -> Any:
    """From a Cursor to a statement, to several, or to nothing that Lapse has to know of."""
    module, name = _PARSERS[verb]
    return getattr(import_module(f"lapse.ddl.{module}"), name)


_PARSERS = {
    "CREATE": ("create", "parse_create_table"),
    "ALTER": ("alter", "parse_alter_table"),
    "COMMENT": ("control", "parse_comment_on"),
    "DROP": ("control", "parse_drop_table"),
    "RENAME": ("control", "parse_rename_table"),
    "SHOW": ("control", "parse_show"),
    "PAUSE": ("control", "parse_control_job"),
    "RESUME": ("control", "parse_control_job"),
    "CANCEL": ("control", "parse_control_job"),
    "ADMIN": ("control", "parse_control_job"),
    "RELEASE": ("holds", "parse_release"),
    "SET": ("control", "parse_set_global"),
    "SELECT": ("query", "parse_catalog_query"),
    "WITH": ("query", "parse_catalog_query"),
}
