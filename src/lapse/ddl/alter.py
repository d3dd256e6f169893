"""ALTER TABLE: TTL clauses, renames, and changes of columns on which a policy may depend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lapse.ddl.clauses import TtlClauses
from lapse.ddl.cursor import Span, TokenCursor, list_cuts, without
from lapse.ddl.holds import parse_hold
from lapse.ddl.lexer import TokenKind
from lapse.ddl.options import read_short_parameters, read_storage_parameters, read_table_option
from lapse.errors import Unsupported
from lapse.model.statement import AlterColumn, AlterTable, ColumnAction, PlaceHold, RenameTable, Statement
from lapse.model.table import TableName


@dataclass(kw_only=True, slots=True)
class AlterReading:
    """What the actions of one ALTER TABLE were found to be."""

    table: TableName
    if_exists: bool
    clauses: TtlClauses
    columns: list[tuple[ColumnAction, str]] = field(default_factory=list)
    renamed_to: TableName | None = None
    cuts: list[Span] = field(default_factory=list)
    is_all_ours: bool = False
    first: int = 0
    """Number of the token with which the actions begin."""


def parse_alter_table(cursor: TokenCursor) -> Statement | None:
    """None when nothing in it concerns Lapse."""
    hold = _read_hold(cursor)
    if hold is not None:
        return hold
    reading = read_alter(cursor)
    if reading is None:
        return None
    line, column = cursor.piece.place
    text, actions = cursor.piece.text, tuple(reading.columns)
    if reading.clauses.found:
        if reading.renamed_to:
            raise Unsupported(
                f"one statement both renames table {reading.table} and changes its TTL",
                hint="write them as two statements",
            )
        return AlterTable(
            text="" if reading.is_all_ours else without(cursor.piece, reading.cuts),
            line=line,
            column=column,
            table=reading.table,
            change=reading.clauses.change(),
            if_exists=reading.if_exists,
            actions=actions,
        )
    if reading.renamed_to:
        renames = ((reading.table, reading.renamed_to),)
        return RenameTable(text=text, line=line, column=column, renames=renames, actions=actions)
    if actions:
        return AlterColumn(
            text=text,
            line=line,
            column=column,
            table=reading.table,
            actions=actions,
            may_remove_ttl=[token.key for token in cursor.tokens[reading.first :]] == ["DROP", "TTL"],
        )
    return None


def _read_hold(cursor: TokenCursor) -> PlaceHold | None:
    start = cursor.index
    if cursor.take("ALTER", "TABLE"):
        table = cursor.table_name()
        found = None if table is None else parse_hold(cursor, table)
        if found is not None:
            return found
    cursor.index = start
    return None


def read_alter(cursor: TokenCursor, *, cut_comments: bool | None = None) -> AlterReading | None:
    if not cursor.take("ALTER"):
        return None
    while cursor.take_any("ONLINE", "OFFLINE", "IGNORE"):
        pass
    if not cursor.take("TABLE"):
        return None
    if_exists = cursor.take("IF", "EXISTS")
    cursor.take("ONLY")
    table = cursor.table_name()
    if table is None:
        return None
    cursor.take("*")
    _skip_wait(cursor)
    clauses = TtlClauses(cursor, cut_comments=cut_comments)
    reading = AlterReading(table=table, if_exists=if_exists, clauses=clauses, first=cursor.index)
    _read_actions(cursor, reading)
    return reading


def _skip_wait(cursor: TokenCursor) -> None:
    """MariaDB's `WAIT n` and `NOWAIT`, before the first action."""
    if not cursor.take("NOWAIT") and cursor.at("WAIT") and cursor.kind(1) is TokenKind.NUMBER:
        cursor.index += 2


def _read_actions(cursor: TokenCursor, reading: AlterReading) -> None:
    spans: list[Span] = []
    ours: list[bool] = []
    inner: list[Span] = []
    while not cursor.done:
        start = cursor.index
        before = len(reading.clauses.cuts)
        _read_action(cursor, reading)
        if cursor.index == start:
            if any(ours):
                raise cursor.problem("expected an action")
            cursor.take(",")
            continue
        cuts = reading.clauses.cuts[before:]
        spans.append(cursor.span(start, cursor.index - 1))
        ours.append(_covers(cuts, cursor, start, cursor.index))
        if not ours[-1]:
            inner.extend(cuts)
        if cursor.take(",") and cursor.done and any(ours):
            raise cursor.problem("expected an action after the comma")
    reading.is_all_ours = bool(ours) and all(ours)
    reading.cuts = inner if reading.is_all_ours else [*inner, *list_cuts(spans, ours)]


def _covers(cuts: list[Span], cursor: TokenCursor, first: int, end: int) -> bool:
    """Do the cuts take every token of the action?"""
    tokens = cursor.tokens[first:end]
    return all(any(start <= token.start < stop for start, stop in cuts) for token in tokens)


def _read_action(cursor: TokenCursor, reading: AlterReading) -> None:
    """One action, up to the comma that ends it."""
    start = cursor.index
    clauses = reading.clauses
    verb = cursor.key()
    if cursor.at("SET", "(") or cursor.at("RESET", "("):
        cursor.next()
        read_storage_parameters(cursor, clauses, start, reset=verb == "RESET")
    elif cursor.at("SET", "TTL") and cursor.key(2) in ("", "(", ","):
        cursor.index += 2
        read_short_parameters(cursor, clauses, start)
    elif verb in _COLUMN_READERS:
        _COLUMN_READERS[verb](cursor, reading)
    elif cursor.at("SET", "SCHEMA"):
        cursor.index += 2
        schema = cursor.identifier()
        if schema is not None:
            reading.renamed_to = TableName(reading.table.name, schema)
    _read_options(cursor, clauses, comments=verb not in _COLUMN_READERS)


def _read_options(cursor: TokenCursor, clauses: TtlClauses, *, comments: bool) -> None:
    while not cursor.done and not cursor.at(","):
        if cursor.at("("):
            cursor.skip_group()
        elif not read_table_option(cursor, clauses, comments=comments, replaces=True):
            cursor.next()


_NOT_A_COLUMN = frozenset(
    "CONSTRAINT INDEX KEY PRIMARY FOREIGN CHECK PARTITION SYSTEM PERIOD TABLESPACE EXPRESSION TABLE".split()
)


def _read_drop(cursor: TokenCursor, reading: AlterReading) -> None:
    cursor.next()
    if cursor.take("COLUMN"):
        cursor.take("IF", "EXISTS")
    elif cursor.at("IF", "EXISTS"):
        cursor.index += 2
    elif cursor.key() in _NOT_A_COLUMN and cursor.kind(1) in (TokenKind.WORD, TokenKind.QUOTED, TokenKind.STRING):
        return
    _note(reading, [ColumnAction.DROP], cursor.identifier())


def _read_rename(cursor: TokenCursor, reading: AlterReading) -> None:
    cursor.next()
    if cursor.key() in ("CONSTRAINT", "INDEX", "KEY") and cursor.key(2) == "TO":
        return
    if cursor.take_any("TO", "AS", "="):
        _note_rename(cursor, reading)
        return
    is_column = cursor.take("COLUMN")
    cursor.take("IF", "EXISTS")
    start = cursor.index
    name = cursor.identifier()
    if is_column or cursor.at("TO"):
        _note(reading, [ColumnAction.RENAME], name)
    else:
        cursor.index = start
        _note_rename(cursor, reading)


def _note_rename(cursor: TokenCursor, reading: AlterReading) -> None:
    name = cursor.table_name()
    # MySQL moves a table renamed to a bare name into the connection's schema; the others leave it where it is.
    if name and name.schema is None and cursor.dialect != "mysql":
        name = TableName(name.name, reading.table.schema)
    reading.renamed_to = name


def _read_alter_column(cursor: TokenCursor, reading: AlterReading) -> None:
    cursor.next()
    if cursor.key() in _NOT_A_COLUMN and cursor.kind(1) in (TokenKind.WORD, TokenKind.QUOTED):
        return
    cursor.take("COLUMN")
    cursor.take("IF", "EXISTS")
    name = cursor.identifier()
    if cursor.at("TYPE") or cursor.at("SET", "DATA", "TYPE"):
        _note(reading, [ColumnAction.RETYPE], name)


def _read_modify(cursor: TokenCursor, reading: AlterReading) -> None:
    cursor.next()
    cursor.take("COLUMN")
    cursor.take("IF", "EXISTS")
    _note(reading, [ColumnAction.RETYPE], cursor.identifier())


def _read_change(cursor: TokenCursor, reading: AlterReading) -> None:
    cursor.next()
    cursor.take("COLUMN")
    cursor.take("IF", "EXISTS")
    old, new = cursor.identifier(), cursor.identifier()
    renamed = [ColumnAction.RENAME] if old is not None and new is not None and old.lower() != new.lower() else []
    _note(reading, [*renamed, ColumnAction.RETYPE], old)


def _note(reading: AlterReading, actions: Iterable[ColumnAction], name: str | None) -> None:
    if name is not None:
        reading.columns.extend((action, name) for action in actions)


def _read_add(cursor: TokenCursor, reading: AlterReading) -> None:
    """Adds something: never a change of what is there, but its COMMENT is not the table's."""
    cursor.next()


_COLUMN_READERS = {
    "DROP": _read_drop,
    "RENAME": _read_rename,
    "ALTER": _read_alter_column,
    "MODIFY": _read_modify,
    "CHANGE": _read_change,
    "ADD": _read_add,
}
