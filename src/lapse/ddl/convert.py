"""TTL DDL from one dialect to another: the TTL clauses of a script are written anew, the rest stays byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lapse.ddl.alter import AlterReading, read_alter
from lapse.ddl.clauses import Origin, TtlClauses
from lapse.ddl.create import read_create
from lapse.ddl.cursor import TokenCursor, without
from lapse.ddl.lexer import SPACES, TokenKind, tokenize
from lapse.ddl.literal import quote_if_needed
from lapse.ddl.render import EXPIRY_FIELDS, has_parameter, storage_parameters, table_name, write
from lapse.ddl.script import Piece, split
from lapse.errors import InvalidValue, Unsupported
from lapse.model import parameters
from lapse.model.interval import DAY, HOUR, MINUTE, WEEK, Interval
from lapse.model.policy import PolicyChange
from lapse.model.table import TableName

CONVERT_TARGETS = ("cockroach", "tidb", "myrocks")
_LEXED_AS = {"cockroach": "postgres", "tidb": "mysql", "myrocks": "mysql"}
_CRONS = {
    "@hourly": Interval(micros=HOUR),
    "@daily": Interval(micros=DAY),
    "@midnight": Interval(micros=DAY),
    "@weekly": Interval(micros=WEEK),
    "* * * * *": Interval(micros=MINUTE),
    "0 * * * *": Interval(micros=HOUR),
    "0 0 * * *": Interval(micros=DAY),
    "0 0 * * 0": Interval(micros=WEEK),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertResult:
    """`notices` say, with their line, what the other dialect has no words for and was left out."""

    text: str
    notices: tuple[str, ...] = ()


def convert(text: str, source: str | None, to: str) -> ConvertResult:
    """`source` is a dialect of `CONVERT_TARGETS`, an engine's, or None to guess it from the quotes."""
    if to not in CONVERT_TARGETS:
        raise InvalidValue("dialect", to, f"must be one of {', '.join(CONVERT_TARGETS)}")
    dialect = _LEXED_AS.get(source, source) if source else _guess(text)
    notices: list[str] = []
    written, position = "", 0
    for piece in split(text, dialect):
        written += text[position : piece.start] + _convert_piece(piece, to, notices)
        position = piece.start + len(piece.text)
    return ConvertResult(text=written + text[position:], notices=tuple(notices))


def _guess(text: str) -> str:
    """Backticks, `ENGINE =` and `#` comments are MySQL's; what is left is read as PostgreSQL."""
    tokens = [token for token in tokenize(text, "mysql") if token.kind is not TokenKind.SPACE]
    backticks = any(token.kind is TokenKind.QUOTED for token in tokens)
    return "mysql" if backticks or any(token.key in ("ENGINE", "TTL") for token in tokens) else "postgres"


def _convert_piece(piece: Piece, to: str, notices: list[str]) -> str:
    alter = read_alter(TokenCursor(piece), cut_comments=True)
    if alter is not None:
        return _convert_alter(piece, alter, to, notices)
    created = read_create(TokenCursor(piece))
    if created is not None:
        return _convert_create(piece, created, to, notices)
    return piece.text


def _is_native(clauses: TtlClauses, to: str) -> bool:
    return not clauses.found or {origin.value for origin in clauses.origins} == {to}


def _convert_create(piece: Piece, clauses: TtlClauses, to: str, notices: list[str]) -> str:
    if _is_native(clauses, to):
        return piece.text
    values = _expressible(piece, clauses, to, notices)
    bare = without(piece, clauses.cuts)
    if not values:
        return bare
    if to == "myrocks" and _find(piece, bare, "COMMENT"):
        raise _located(piece, "the table has a comment already", "put the TTL rules into it by hand")
    if to == "cockroach" and (merged := _merged_with(piece, bare, values)):
        return merged
    start = min(start for start, _ in clauses.cuts)
    head = piece.source[piece.start : start].rstrip(SPACES)
    tail = bare[len(head) :]
    return f"{head} {write(values, None, to)}{tail}" if bare.startswith(head) else f"{bare} {write(values, None, to)}"


def _merged_with(piece: Piece, bare: str, values: dict[str, Any]) -> str | None:
    """The text with our parameters put into the WITH list that is still there; None when there is none."""
    end = _find(piece, bare, "WITH", "(")
    if end is None:
        return None
    return f"{bare[:end]}{write(values, None, 'cockroach')[len('WITH (') : -1]}, {bare[end:]}"


def _find(piece: Piece, text: str, *keys: str) -> int | None:
    """Where these words, outside all brackets, end in the text."""
    cursor = TokenCursor(split(text, piece.dialect)[0])
    while not cursor.done:
        if cursor.at(*keys):
            return cursor.tokens[cursor.index + len(keys) - 1].end
        if cursor.at("("):
            cursor.skip_group()
        else:
            cursor.next()
    return None


def _convert_alter(piece: Piece, alter: AlterReading, to: str, notices: list[str]) -> str:
    if _is_native(alter.clauses, to):
        return piece.text
    change = alter.clauses.change()
    rest = "" if alter.is_all_ours else without(piece, alter.cuts)
    statements = [rest] if rest else []
    if change.remove:
        statements.append(_removal(alter.table, to))
    else:
        values = _expressible(piece, alter.clauses, to, notices)
        if values:
            statements.append(write(values, alter.table, to))
        statements += _resets(piece, alter.table, change, to, notices)
    return ";\n".join(statements)


def _removal(table: TableName, to: str) -> str:
    action = {"cockroach": "RESET (ttl)", "tidb": "REMOVE TTL", "myrocks": "COMMENT = ''"}[to]
    return f"ALTER TABLE {table_name(table, to)} {action}"


def _resets(piece: Piece, table: TableName, change: PolicyChange, to: str, notices: list[str]) -> list[str]:
    # A comment replaces what was said about expiry before: that needs no word of its own in the other dialects.
    fields = [field for field in sorted(change.reset) if field not in ("column", "interval", "partitions")]
    names = [
        parameter.name
        for parameter in parameters.PARAMETERS.values()
        if parameter.field in fields and parameter.field not in change.set
    ]
    if not names or set(change.set) & set(EXPIRY_FIELDS):
        return []
    if to == "cockroach":
        return [f"ALTER TABLE {table_name(table, to)} RESET ({', '.join(names)})"]
    if to == "tidb" and names == ["ttl_pause"]:
        return [f"ALTER TABLE {table_name(table, to)} TTL_ENABLE = 'ON'"]
    _notice(piece, notices, f"RESET of {', '.join(names)} was left out: {to} has no such statement")
    return []


def _expressible(piece: Piece, clauses: TtlClauses, to: str, notices: list[str]) -> dict[str, Any]:
    """What the target can say: parameters that it lacks are left out with a notice, an expiry is refused."""
    values = dict(clauses.change().set)
    _translate_schedule(piece, values, to, notices)
    if Origin.MYROCKS in clauses.origins:
        _translate_unix_time(piece, values, to, notices)
    for field in [field for field in values if field not in EXPIRY_FIELDS and not has_parameter(field, to)]:
        name = next(iter(storage_parameters({field: values.pop(field)})))
        _notice(piece, notices, f"{name} was left out: {to} has no such parameter")
    if values.get("column") is not None and to == "myrocks":
        _notice(piece, notices, f"MyRocks wants {values['column']} to be BIGINT UNSIGNED NOT NULL, in unix seconds")
    if to == "myrocks" and not set(values) & set(EXPIRY_FIELDS):
        return {}
    try:
        write(values, None, to)
    except Unsupported as problem:
        raise _located(piece, problem.message, problem.hint) from None
    return values


def _translate_unix_time(piece: Piece, values: dict[str, Any], to: str, notices: list[str]) -> None:
    """MyRocks's column holds unix seconds, the others want a time."""
    column = values.get("column")
    if column is not None and to == "cockroach":
        values["expression"] = f"to_timestamp({quote_if_needed(column)}) + INTERVAL '{values.pop('interval')}'"
        del values["column"]
    elif column is not None:
        _notice(piece, notices, f"TiDB wants {column} to be DATE, DATETIME or TIMESTAMP, not unix seconds")


def _located(piece: Piece, message: str, hint: str | None) -> Unsupported:
    line, column = piece.place
    return Unsupported(f"line {line}, column {column}: {message}", hint=hint)


def _translate_schedule(piece: Piece, values: dict[str, Any], to: str, notices: list[str]) -> None:
    """CockroachDB says when a job runs, TiDB how often: the common ones are the same thing said in two ways."""
    if to == "tidb" and "job_cron" in values:
        every = _CRONS.get(values["job_cron"].lower())
        if every is not None:
            _notice(piece, notices, f"ttl_job_cron = {values['job_cron']!r} was written as every {every}")
            del values["job_cron"]
            values["job_interval"] = every
    if to == "cockroach" and "job_interval" in values:
        cron = next((cron for cron, every in _CRONS.items() if every == values["job_interval"]), None)
        if cron is not None:
            _notice(piece, notices, f"TTL_JOB_INTERVAL {values['job_interval']} was written as cron {cron!r}")
            del values["job_interval"]
            values["job_cron"] = cron


def _notice(piece: Piece, notices: list[str], message: str) -> None:
    notices.append(f"line {piece.place[0]}: {message}")
