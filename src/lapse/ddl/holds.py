"""`ALTER TABLE t HOLD [UNTIL 'time'] [REASON 'text'] [WHERE condition]` and `RELEASE HOLD number`."""

from __future__ import annotations

from datetime import datetime

from lapse.ddl.cursor import TokenCursor
from lapse.ddl.lexer import TokenKind
from lapse.ddl.literal import unquote
from lapse.model.statement import PlaceHold, ReleaseHold
from lapse.model.table import TableName


def parse_hold(cursor: TokenCursor, table: TableName) -> PlaceHold | None:
    """After the name of the table; None, and nothing read, where it is something else."""
    if not cursor.take("HOLD"):
        return None
    until: datetime | None = None
    reason: str | None = None
    while cursor.at("UNTIL") or cursor.at("REASON"):
        if cursor.take("UNTIL"):
            until = _read_moment(cursor)
        else:
            cursor.take("REASON")
            reason = _read_text(cursor)
    where = None
    if cursor.take("WHERE"):
        first = cursor.next()
        where = cursor.piece.source[first.start : cursor.piece.end].strip()
    elif not cursor.done:
        raise cursor.problem("expected UNTIL, REASON or WHERE after HOLD")
    line, column = cursor.piece.place
    return PlaceHold(
        text=cursor.piece.text, line=line, column=column, table=table, where=where, until=until, reason=reason
    )


def parse_release(cursor: TokenCursor) -> ReleaseHold | None:
    """Not `RELEASE SAVEPOINT`."""
    if not cursor.take("RELEASE", "HOLD"):
        return None
    token = cursor.peek()
    if token is None or not (token.text.isascii() and token.text.isdigit()):
        raise cursor.problem("expected the number of a hold", hint="SHOW HOLDS lists them")
    cursor.next()
    if not cursor.done:
        raise cursor.problem("expected nothing after the number of the hold")
    line, column = cursor.piece.place
    return ReleaseHold(text=cursor.piece.text, line=line, column=column, hold_id=int(token.text))


def _read_text(cursor: TokenCursor) -> str:
    if cursor.kind() is not TokenKind.STRING:
        raise cursor.problem("expected a text in quotes")
    return unquote(cursor.next(), cursor.dialect)


def _read_moment(cursor: TokenCursor) -> datetime:
    token = cursor.peek()
    text = _read_text(cursor)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise cursor.problem(f"{text!r} is no time", token, hint="write it as '2030-01-31T12:00:00Z'") from None
    if found.tzinfo is None:
        raise cursor.problem(f"{text!r} has no zone", token, hint=f"write '{found.isoformat()}Z' for UTC")
    return found
