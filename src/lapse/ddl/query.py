"""SELECTs that read what only Lapse knows: `[SHOW …]`, `pg_class.reloptions`, `@@global.tidb_ttl_…`."""

from __future__ import annotations

from lapse.ddl.control import is_setting
from lapse.ddl.cursor import TokenCursor
from lapse.ddl.lexer import Token, TokenKind
from lapse.ddl.literal import unquote
from lapse.model.statement import CatalogQuery, RelOptions, Show, Variable

_Part = Show | RelOptions | Variable


def parse_catalog_query(cursor: TokenCursor) -> CatalogQuery | None:
    """None for a query that reads nothing of Lapse's."""
    wants_options = any(_name(token, cursor.dialect) == "reloptions" for token in cursor.tokens)
    if wants_options and cursor.dialect == "postgres":
        wants_options = _asks_for_options_only(cursor)
    pieces: list[str | _Part] = []
    source, position = cursor.piece.source, cursor.piece.start
    while not cursor.done:
        start = cursor.index
        part = _read_part(cursor, wants_options=wants_options)
        if part is None:
            cursor.index = start + 1
            continue
        first, last = cursor.span(start, cursor.index - 1)
        pieces += [source[position:first], part]
        if not isinstance(part, Variable) and not _has_alias(cursor):
            # Where a sub-query stands in for a table, some engines insist on a name for it.
            pieces.append(f" AS {_alias(part)}")
        position = last
    if not any(isinstance(piece, Show | RelOptions | Variable) for piece in pieces):
        return None
    pieces.append(source[position : cursor.piece.end])
    line, column = cursor.piece.place
    kept = tuple(piece for piece in _joined(pieces) if piece != "")
    return CatalogQuery(text=cursor.piece.text, line=line, column=column, pieces=kept)


_PLAIN_WORDS = frozenset(
    """SELECT DISTINCT FROM WHERE AND OR NOT LIKE ILIKE IN IS NULL ORDER BY ASC DESC LIMIT OFFSET AS RELNAME RELOPTIONS
    PG_CLASS PG_CATALOG""".split()
)


def _asks_for_options_only(cursor: TokenCursor) -> bool:
    """PostgreSQL has a pg_class of its own, which tools read with joins and other columns: those are left alone."""
    for index, token in enumerate(cursor.tokens):
        before, after = (cursor.tokens[i].key if 0 <= i < len(cursor.tokens) else "" for i in (index - 1, index + 1))
        is_name = token.kind in (TokenKind.WORD, TokenKind.QUOTED)
        word = _name(token, cursor.dialect).upper()
        is_alias = before in ("AS", "PG_CLASS") or after == "."
        if is_name and word not in _PLAIN_WORDS and not is_alias and after != "(":
            return False
    return True


def _joined(pieces: list[str | _Part]) -> list[str | _Part]:
    joined: list[str | _Part] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        # Show is a string too, but one that stands for a list.
        if type(piece) is str and type(last) is str:
            joined[-1] = last + piece
        else:
            joined.append(piece)
    return joined


def _read_part(cursor: TokenCursor, *, wants_options: bool) -> _Part | None:
    return _read_show(cursor) or _read_variable(cursor) or (_read_pg_class(cursor) if wants_options else None)


def _read_show(cursor: TokenCursor) -> Show | None:
    token = cursor.peek()
    if token and token.kind is TokenKind.QUOTED and token.text.startswith("["):
        words = unquote(token, cursor.dialect).upper().split()
        if len(words) == 2 and words[0] == "SHOW" and words[1] in ("SCHEDULES", "JOBS"):
            cursor.next()
            return Show(words[1].lower())
        return None
    for what in Show:
        if cursor.take("[", "SHOW", what.value.upper(), "]"):
            return what
    return None


def _read_variable(cursor: TokenCursor) -> Variable | None:
    if not cursor.take("@@"):
        return None
    cursor.take("GLOBAL", ".")
    token = cursor.peek()
    if token is None or token.kind is not TokenKind.WORD or not is_setting(token.text.lower()):
        return None
    return Variable(cursor.next().text.lower())


def _read_pg_class(cursor: TokenCursor) -> RelOptions | None:
    """`pg_class` where a table is named, not where it qualifies a column."""
    if cursor.key(-1) == ".":
        return None
    if _name(cursor.peek(), cursor.dialect) == "pg_catalog" and cursor.key(1) == ".":
        cursor.index += 2
    if _name(cursor.peek(), cursor.dialect) != "pg_class" or cursor.key(1) == ".":
        return None
    cursor.next()
    return RelOptions()


def _name(token: Token | None, dialect: str) -> str:
    if token is None or token.kind not in (TokenKind.WORD, TokenKind.QUOTED):
        return ""
    return token.text.lower() if token.kind is TokenKind.WORD else unquote(token, dialect)


_CLAUSES = frozenset(
    """WHERE GROUP ORDER HAVING LIMIT OFFSET FETCH FOR UNION EXCEPT INTERSECT WINDOW JOIN INNER LEFT RIGHT FULL CROSS
    NATURAL ON USING TABLESAMPLE STRAIGHT_JOIN""".split()
)


def _has_alias(cursor: TokenCursor) -> bool:
    return cursor.kind() is TokenKind.QUOTED or (cursor.kind() is TokenKind.WORD and cursor.key() not in _CLAUSES)


def _alias(part: _Part) -> str:
    return part.value if isinstance(part, Show) else "pg_class"
