"""The TTL clauses that may stand in CREATE TABLE and ALTER TABLE, read token by token."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.ddl.clauses import Origin, TtlClauses, within
from lapse.ddl.comment import parse_comment_policy
from lapse.ddl.cursor import Span, TokenCursor, list_cuts
from lapse.ddl.lexer import Token, TokenKind
from lapse.ddl.literal import is_terminated, unquote
from lapse.errors import InvalidValue, TtlSyntaxError
from lapse.model import interval, parameters
from lapse.model.expression import Node
from lapse.model.interval import Interval

EXPRESSION = "ttl_expiration_expression"
FILTER = "ttl_filter"
DEFAULT_EXPIRE_AFTER = "30 days"
"""CockroachDB's default, which a bare `TTL` asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Parameter:
    """One element of a parenthesised list; `value` are the tokens after `=`."""

    name: str
    token: Token
    value: list[Token]
    span: Span

    @property
    def is_ours(self) -> bool:
        return self.name == "ttl" or self.name.startswith("ttl_")


def read_storage_parameters(cursor: TokenCursor, clauses: TtlClauses, first: int, *, reset: bool = False) -> None:
    """The list at the cursor; `first` is the number of the token (`WITH`, `SET`, `RESET`) that introduces it."""
    parameters = _parameter_list(cursor)
    ours = [parameter.is_ours for parameter in parameters]
    for parameter in parameters:
        if parameter.is_ours:
            _apply(cursor, clauses, parameter, reset=reset)
    if ours and all(ours):
        clauses.cuts.append(cursor.span(first, cursor.index - 1))
    elif any(ours):
        clauses.cuts.extend(list_cuts([parameter.span for parameter in parameters], ours))


def read_short_parameters(cursor: TokenCursor, clauses: TtlClauses, first: int) -> None:
    """The bare `TTL` of the RFC's other syntax, with or without a list whose names may lack their `ttl_`."""
    token = cursor.tokens[cursor.index - 1]
    parameters = _parameter_list(cursor) if cursor.at("(") else []
    names = set()
    for parameter in parameters:
        name = parameter.name if parameter.is_ours else f"ttl_{parameter.name}"
        names.add(name)
        full = _Parameter(name=name, token=parameter.token, value=parameter.value, span=parameter.span)
        _apply(cursor, clauses, full, reset=False)
    if not names & {"ttl_expire_after", EXPRESSION}:
        clauses.assign_parameter("ttl_expire_after", DEFAULT_EXPIRE_AFTER, token)
    clauses.cuts.append(cursor.span(first, cursor.index - 1))


def _parameter_list(cursor: TokenCursor) -> list[_Parameter]:
    cursor.expect("(", "here")
    parameters: list[_Parameter] = []
    while not cursor.done and not cursor.at(")"):
        start, depth = cursor.index, 0
        while not cursor.done and (depth or cursor.key() not in (",", ")")):
            depth += {"(": 1, ")": -1}.get(cursor.next().key, 0)
        parameters.append(_parameter(cursor, start, cursor.index))
        cursor.take(",")
    if any(parameter.is_ours for parameter in parameters):
        cursor.expect(")", "to end the list")
    else:
        cursor.take(")")
    return parameters


def _parameter(cursor: TokenCursor, start: int, end: int) -> _Parameter:
    tokens = cursor.tokens[start:end]
    if not tokens:
        raise cursor.problem("expected a parameter")
    first = tokens[0]
    name = unquote(first, cursor.dialect) if first.kind in (TokenKind.QUOTED, TokenKind.STRING) else first.text
    value = tokens[2:] if len(tokens) > 1 and tokens[1].key == "=" else tokens[1:]
    return _Parameter(name=name.lower(), token=first, value=value, span=cursor.span(start, end - 1))


def _apply(cursor: TokenCursor, clauses: TtlClauses, parameter: _Parameter, *, reset: bool) -> None:
    if reset:
        if parameter.value:
            raise cursor.problem(f"expected a name alone: RESET ({parameter.name}) takes no value", parameter.value[0])
        clauses.reset(parameter.name, parameter.token)
    elif parameter.name == EXPRESSION:
        read_expression(cursor, clauses, parameter.value, parameter.token)
    elif parameter.name == FILTER:
        text, _ = _read_quoted(cursor, FILTER, parameter.value)
        clauses.assign_parameter(FILTER, text, parameter.token)
    else:
        text = "on" if not parameter.value else read_value(cursor, parameter.value)
        clauses.assign_parameter(parameter.name, text, parameter.token)


def read_expression(cursor: TokenCursor, clauses: TtlClauses, value: list[Token], token: Token) -> None:
    from lapse.ddl.expression import recognise_column

    text, node = _read_quoted(cursor, EXPRESSION, value)
    clauses.assign_expression(text, recognise_column(node), token)


def _read_quoted(cursor: TokenCursor, name: str, value: list[Token]) -> tuple[str, Node]:
    """An expression in quotes, as text and read."""
    from lapse.ddl.expression import parse_expression

    if len(value) != 1 or value[0].kind not in (TokenKind.STRING, TokenKind.QUOTED):
        raise InvalidValue(name, read_value(cursor, value) if value else "", "must be a string")
    text = parameters.find(name).parse(read_value(cursor, value), name)
    try:
        return text, parse_expression(text, columns=None)
    except TtlSyntaxError as problem:
        raise within(cursor, value[0], name, problem) from None


def read_value(cursor: TokenCursor, tokens: list[Token]) -> str:
    """The text of a value: `'x'`, `200`, `-1`, `on`, `'x'::interval`, `INTERVAL 'x'`, `INTERVAL 3 MONTH`."""
    if not tokens:
        raise cursor.problem("expected a value")
    first = tokens[0]
    if not all(is_terminated(token, cursor.dialect) for token in tokens):
        raise cursor.problem("this quote is never closed", first)
    if first.key == "(" and tokens[-1].key == ")":
        return read_value(cursor, tokens[1:-1])
    if first.key == "INTERVAL" and len(tokens) in (2, 3):
        quantity = _literal(cursor, tokens[1])
        return f"INTERVAL '{quantity}' {tokens[2].text}" if len(tokens) == 3 else quantity
    if first.kind in (TokenKind.STRING, TokenKind.QUOTED) and (len(tokens) == 1 or tokens[1].key in ("::", ":::")):
        return unquote(first, cursor.dialect)
    if len(tokens) == 1 or (len(tokens) == 2 and first.key in ("-", "+")):
        return "".join(token.text for token in tokens)
    raise cursor.problem("expected one value, in quotes where it has several words", tokens[1])


def _literal(cursor: TokenCursor, token: Token) -> str:
    return unquote(token, cursor.dialect) if token.kind in (TokenKind.STRING, TokenKind.QUOTED) else token.text


def read_table_option(cursor: TokenCursor, clauses: TtlClauses, *, comments: bool, replaces: bool = False) -> bool:
    """One TTL option at the cursor, if there is one; `comments` says whether a COMMENT here is the table's."""
    start = cursor.index
    if cursor.key(-1) in _NOT_BEFORE_AN_OPTION:
        return False
    if _at_ttl(cursor):
        _read_ttl(cursor, clauses)
    elif cursor.at("TTL_ENABLE") and _has_value(cursor):
        _read_enable(cursor, clauses)
    elif cursor.at("TTL_JOB_INTERVAL") and _has_value(cursor):
        token = cursor.next()
        value = parameters.find("ttl_job_interval").parse(_option_value(cursor), "TTL_JOB_INTERVAL")
        clauses.assign("job_interval", value, origin=Origin.TIDB, label="TTL_JOB_INTERVAL", token=token)
    elif cursor.at("REMOVE", "TTL"):
        clauses.remove(cursor.next())
        cursor.next()
    elif comments and cursor.at("COMMENT"):
        return _read_comment(cursor, clauses, replaces=replaces)
    else:
        return False
    clauses.cuts.append(cursor.span(start, cursor.index - 1))
    return True


_NOT_BEFORE_AN_OPTION = frozenset({"=", ".", "LIKE", "TABLESPACE", "USING", "OF", "BY", "ENGINE", "ON", "COLUMN", "TO"})
_TEXTS = frozenset({TokenKind.STRING, TokenKind.QUOTED})


def _at_ttl(cursor: TokenCursor) -> bool:
    if not cursor.at("TTL"):
        return False
    named = cursor.kind(1) in (TokenKind.WORD, TokenKind.QUOTED) and cursor.key(2) == "+"
    return cursor.key(1) == "=" or named


def _has_value(cursor: TokenCursor) -> bool:
    return cursor.key(1) in ("=", "ON", "OFF") or cursor.kind(1) in _TEXTS


def _read_ttl(cursor: TokenCursor, clauses: TtlClauses) -> None:
    """`TTL [=] column + INTERVAL quantity unit`."""
    token = cursor.next()
    cursor.take("=")
    column = cursor.identifier()
    if column is None:
        raise cursor.problem("expected a column after TTL =", hint="write TTL = column + INTERVAL 3 MONTH")
    if not cursor.at("+"):
        raise cursor.problem("expected + INTERVAL after TTL = column", hint=f"write TTL = {column} + INTERVAL 3 MONTH")
    cursor.next()
    cursor.expect("INTERVAL", "after TTL = column +")
    clauses.assign_column(column, _read_interval(cursor), token)


def _read_interval(cursor: TokenCursor) -> Interval:
    sign = cursor.next().key if cursor.key() in ("-", "+") else ""
    quantity = cursor.next()
    if quantity.kind not in (TokenKind.NUMBER, TokenKind.STRING, TokenKind.QUOTED) or not is_terminated(
        quantity, cursor.dialect
    ):
        raise cursor.problem("expected a number after INTERVAL", quantity)
    text = sign.replace("+", "") + _literal(cursor, quantity)
    if cursor.kind() is TokenKind.WORD and cursor.key() in interval.MYSQL_UNITS:
        return interval.from_unit(text, cursor.next().text, name="TTL")
    return interval.parse(text, name="TTL")


def _read_enable(cursor: TokenCursor, clauses: TtlClauses) -> None:
    token = cursor.next()
    value = _option_value(cursor)
    if value.upper() not in ("ON", "OFF"):
        raise InvalidValue("TTL_ENABLE", value, "must be 'ON' or 'OFF'")
    clauses.assign("pause", value.upper() == "OFF", origin=Origin.TIDB, label="TTL_ENABLE", token=token)


def _option_value(cursor: TokenCursor) -> str:
    cursor.take("=")
    return read_value(cursor, [cursor.next()])


def _read_comment(cursor: TokenCursor, clauses: TtlClauses, *, replaces: bool) -> bool:
    start = cursor.index
    token = cursor.next()
    cursor.take("=")
    value = cursor.peek()
    text = read_value(cursor, [value]) if value and value.kind in _TEXTS else ""
    fields = parse_comment_policy(text)
    if fields is None:
        cursor.index = start
        return False
    cursor.next()
    clauses.assign_comment(text, fields, token, replaces=replaces)
    if clauses.cut_comments:
        clauses.cuts.append(cursor.span(start, cursor.index - 1))
    return True
