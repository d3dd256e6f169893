"""CREATE TABLE with a TTL part."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.ddl.clauses import TtlClauses
from lapse.ddl.cursor import TokenCursor, without
from lapse.ddl.options import read_short_parameters, read_storage_parameters, read_table_option
from lapse.model.statement import CreateTable, DropTable
from lapse.model.table import TableName


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    table: TableName
    if_not_exists: bool
    replaces: bool
    temporary: bool


def parse_create_table(cursor: TokenCursor) -> CreateTable | DropTable | None:
    """None when it is no CREATE TABLE, or one without a TTL part that replaces no table."""
    header = _read_header(cursor)
    if header is None:
        return None
    clauses = TtlClauses(cursor)
    _read_options(cursor, clauses)
    line, column = cursor.piece.place
    if not clauses.found:
        if not header.replaces or header.temporary:
            return None
        return DropTable(text=cursor.piece.text, line=line, column=column, tables=(header.table,), replaced=True)
    return CreateTable(
        text=without(cursor.piece, clauses.cuts),
        line=line,
        column=column,
        table=header.table,
        change=clauses.change(),
        if_not_exists=header.if_not_exists,
        replaces=header.replaces,
        temporary=header.temporary,
    )


def _read_header(cursor: TokenCursor) -> _Header | None:
    if not cursor.take("CREATE"):
        return None
    replaces = cursor.take("OR", "REPLACE")
    cursor.take_any("GLOBAL", "LOCAL")
    temporary = cursor.take_any("TEMP", "TEMPORARY")
    cursor.take("UNLOGGED")
    if not cursor.take("TABLE"):
        return None
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    table = cursor.table_name()
    if table is None:
        return None
    return _Header(table=table, if_not_exists=if_not_exists, replaces=replaces, temporary=temporary)


def read_create(cursor: TokenCursor) -> TtlClauses | None:
    """Only what a CREATE TABLE declares, a comment that declares it to be cut on every engine."""
    if _read_header(cursor) is None:
        return None
    clauses = TtlClauses(cursor, cut_comments=True)
    _read_options(cursor, clauses)
    return clauses


def _read_options(cursor: TokenCursor, clauses: TtlClauses) -> None:
    """Everything after the table's name, up to the query of a CREATE TABLE … AS."""
    while not cursor.done and cursor.key() not in ("AS", "SELECT"):
        start = cursor.index
        if cursor.at("WITH", "("):
            cursor.next()
            read_storage_parameters(cursor, clauses, start)
        elif cursor.at("TTL") and _is_bare_ttl(cursor):
            cursor.next()
            read_short_parameters(cursor, clauses, start)
        elif cursor.at("("):
            cursor.skip_group()
        elif read_table_option(cursor, clauses, comments=True):
            _cut_comma(cursor, clauses, start)
        else:
            cursor.next()


def _is_bare_ttl(cursor: TokenCursor) -> bool:
    """`TTL` right after the columns, with nothing or a list behind it."""
    return cursor.key(-1) == ")" and (cursor.peek(1) is None or cursor.key(1) == "(")


def _cut_comma(cursor: TokenCursor, clauses: TtlClauses, start: int) -> None:
    """MySQL lets commas stand between table options: one goes with the option, the one before if it is still there."""
    if not clauses.cuts or clauses.cuts[-1] != cursor.span(start, cursor.index - 1):
        return
    first, last = clauses.cuts[-1]
    before = cursor.tokens[start - 1]
    taken = any(cut_start <= before.start < cut_end for cut_start, cut_end in clauses.cuts[:-1])
    if before.key == "," and not taken:
        clauses.cuts[-1] = (before.start, last)
    elif cursor.at(","):
        clauses.cuts[-1] = (first, cursor.span(cursor.index, cursor.index)[1])
