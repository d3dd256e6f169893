"""Statements about tables, jobs and settings that are not ALTER or CREATE TABLE."""

from __future__ import annotations

from lapse.ddl.comment import parse_comment_policy
from lapse.ddl.cursor import TokenCursor
from lapse.ddl.lexer import TokenKind
from lapse.ddl.options import read_value
from lapse.model import settings
from lapse.model.policy import PolicyChange
from lapse.model.statement import (
    AlterTable,
    ControlJob,
    DropTable,
    JobAction,
    RenameTable,
    SetGlobal,
    Show,
    ShowCreateTable,
    ShowHolds,
    ShowList,
)
from lapse.model.table import TableName


def parse_drop_table(cursor: TokenCursor) -> DropTable | None:
    """Not `DROP TEMPORARY TABLE`: no policy is ever on a temporary table."""
    if not cursor.take("DROP") or not cursor.take_any("TABLE", "TABLES"):
        return None
    cursor.take("IF", "EXISTS")
    tables: list[TableName] = []
    while True:
        table = cursor.table_name()
        if table is None:
            return None
        tables.append(table)
        if not cursor.take(","):
            break
    line, column = cursor.piece.place
    return DropTable(text=cursor.piece.text, line=line, column=column, tables=tuple(tables))


def parse_rename_table(cursor: TokenCursor) -> RenameTable | None:
    """MySQL's `RENAME TABLE a TO b, c TO d`."""
    if not cursor.take("RENAME") or not cursor.take_any("TABLE", "TABLES"):
        return None
    cursor.take("IF", "EXISTS")
    renames: list[tuple[TableName, TableName]] = []
    while True:
        old = cursor.table_name()
        if cursor.take_any("WAIT", "NOWAIT") and cursor.kind() is TokenKind.NUMBER:
            cursor.next()
        new = cursor.table_name() if cursor.take("TO") else None
        if old is None or new is None:
            return None
        renames.append((old, new))
        if not cursor.take(","):
            break
    line, column = cursor.piece.place
    return RenameTable(text=cursor.piece.text, line=line, column=column, renames=tuple(renames))


def parse_comment_on(cursor: TokenCursor) -> AlterTable | None:
    """PostgreSQL's `COMMENT ON TABLE t IS '…'` where that declares a policy."""
    if cursor.dialect != "postgres" or not cursor.take("COMMENT", "ON", "TABLE"):
        return None
    table = cursor.table_name()
    if table is None or not cursor.take("IS") or cursor.kind() is not TokenKind.STRING:
        return None
    text = read_value(cursor, [cursor.next()])
    fields = parse_comment_policy(text)
    if fields is None or not cursor.done:
        return None
    line, column = cursor.piece.place
    change = PolicyChange(set=fields, comment=text)
    return AlterTable(text=cursor.piece.text, line=line, column=column, table=table, change=change)


def parse_show(cursor: TokenCursor) -> ShowCreateTable | ShowList | ShowHolds | None:
    cursor.take("SHOW")
    line, column = cursor.piece.place
    text = cursor.piece.text
    if cursor.take("CREATE", "TABLE"):
        table = cursor.table_name()
        return ShowCreateTable(text=text, line=line, column=column, table=table) if table and cursor.done else None
    if cursor.take("HOLDS"):
        return ShowHolds(text=text, line=line, column=column) if cursor.done else None
    what = Show(cursor.next().text.lower()) if cursor.key() in ("SCHEDULES", "JOBS") else None
    return ShowList(text=text, line=line, column=column, what=what) if what and cursor.done else None


def parse_control_job(cursor: TokenCursor) -> ControlJob | None:
    """`PAUSE|RESUME|CANCEL JOB id`, `ADMIN CANCEL TTL JOB id`."""
    if cursor.take("ADMIN"):
        if not cursor.take("CANCEL", "TTL", "JOB"):
            return None
        action = JobAction.CANCEL
    else:
        action = JobAction(cursor.next().text.lower())
        if not cursor.take("JOB"):
            return None
    line, column = cursor.piece.place
    job_id = _read_job_id(cursor)
    return ControlJob(text=cursor.piece.text, line=line, column=column, action=action, job_id=job_id)


def _read_job_id(cursor: TokenCursor) -> int:
    token = cursor.peek()
    text = read_value(cursor, [token]) if token else ""
    if not (text.isascii() and text.isdigit()):
        raise cursor.problem("expected the number of a job", hint="SHOW JOBS lists them")
    cursor.next()
    if not cursor.done:
        raise cursor.problem("expected nothing after the number of the job")
    return int(text)


def parse_set_global(cursor: TokenCursor) -> list[SetGlobal]:
    """`SET GLOBAL name = value, …`; empty when no variable of ours is set."""
    cursor.take("SET")
    line, column = cursor.piece.place
    found: list[SetGlobal] = []
    others = False
    while not cursor.done:
        is_global = cursor.take("GLOBAL") or cursor.take("@@", "GLOBAL", ".")
        token = cursor.peek()
        name = token.text.lower() if token and token.kind in (TokenKind.WORD, TokenKind.QUOTED) else ""
        name = name.strip('`"')
        if not is_setting(name):
            others = True
            _skip_assignment(cursor)
            continue
        if not is_global:
            raise cursor.problem(f"{name} is a global variable", hint=f"use SET GLOBAL {name} = …")
        cursor.next()
        if not cursor.take_any("=", ":=", "TO"):
            raise cursor.problem(f"expected = after {name}")
        value = _read_setting(cursor, name)
        found.append(SetGlobal(text=cursor.piece.text, line=line, column=column, name=name, value=value))
    if found and others:
        raise cursor.problem(
            f"{found[0].name} and a variable of the database are set in one statement",
            cursor.tokens[0],
            hint="write them as two statements",
        )
    return found


def is_setting(name: str) -> bool:
    """`lapse_` is a prefix of no database: a misspelt one is told, not sent to the server."""
    return name.startswith(("tidb_ttl_", "lapse_"))


def _skip_assignment(cursor: TokenCursor) -> None:
    while not cursor.done and not cursor.at(","):
        if cursor.at("("):
            cursor.skip_group()
        else:
            cursor.next()
    cursor.take(",")


def _read_setting(cursor: TokenCursor, name: str) -> str:
    start = cursor.index
    while not cursor.done and not cursor.at(","):
        cursor.next()
    tokens = cursor.tokens[start : cursor.index]
    cursor.take(",")
    if len(tokens) == 1 and tokens[0].key == "DEFAULT":
        return settings.find(name).default
    return read_value(cursor, tokens)
