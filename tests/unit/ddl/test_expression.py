"""Expiration expressions: what is understood, and that nothing else gets in."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.ddl import parse_expression, recognise_column
from lapse.errors import LapseError, TtlSyntaxError
from lapse.model.expression import (
    BINARY_OPERATORS,
    CAST_TYPES,
    FUNCTIONS,
    Binary,
    Boolean,
    Call,
    Case,
    Cast,
    ColumnRef,
    JsonPath,
    Membership,
    Node,
    Now,
    Null,
    Number,
    Span,
    Text,
    Unary,
    walk,
)
from lapse.model.interval import DAY, HOUR, MINUTE, Interval

A, B, C, X = ColumnRef("a"), ColumnRef("b"), ColumnRef("c"), ColumnRef("x")
FIVE_MINUTES = Span(Interval(micros=5 * MINUTE))
X_AND_FIVE = Binary("+", X, FIVE_MINUTES)
ONE, TWO = Number("1"), Number("2")
BETWEEN = Binary("AND", Binary(">=", A, ONE), Binary("<=", A, TWO))

UNDERSTOOD: list[tuple[str, Node]] = [
    ("if(a, b, NULL)", Case(((A, B),), Null())),
    ("IF(`a`, `b`, `c`)", Case(((A, B),), C)),
    ("CASE WHEN a THEN b END", Case(((A, B),), Null())),
    ("CASE a WHEN 1 THEN b ELSE c END", Case(((Binary("=", A, ONE), B),), C)),
    ("coalesce(a, b, c)", Call("coalesce", (A, B, C))),
    ("IFNULL(a, b)", Call("coalesce", (A, B))),
    ("nullif(a, b)", Call("nullif", (A, B))),
    ("GREATEST(a, b)", Call("greatest", (A, B))),
    ("least(a, b)", Call("least", (A, B))),
    ("current_timestamp", Now()),
    ("current_timestamp()", Now()),
    ("now()", Now()),
    ("transaction_timestamp()", Now()),
    ("utc_timestamp()", Now()),
    ("if(`a`, now(), NULL)", Case(((A, Now()),), Null())),
    ("current_date", Cast(Now(), "date")),
    ("current_timestamp() + '5 minutes'", Binary("+", Now(), FIVE_MINUTES)),
    ("x + '5 minutes'", X_AND_FIVE),
    ("x + '5 minutes'::interval", X_AND_FIVE),
    ("x + '00:05:00':::INTERVAL", X_AND_FIVE),
    ("x + INTERVAL '5 minutes'", X_AND_FIVE),
    ("x + INTERVAL '5' MINUTE", X_AND_FIVE),
    ("x + INTERVAL 5 MINUTE", X_AND_FIVE),
    ("`x` + INTERVAL 5 MINUTE", X_AND_FIVE),
    ("DATE_ADD(x, INTERVAL 5 MINUTE)", X_AND_FIVE),
    ("date_add(`x`, interval 5 minute)", X_AND_FIVE),
    ("DATE_SUB(`x`, INTERVAL 5 MINUTE)", Binary("-", X, FIVE_MINUTES)),
    ("x - INTERVAL '5 minutes'", Binary("-", X, FIVE_MINUTES)),
    ("INTERVAL '5 minutes' + x", Binary("+", FIVE_MINUTES, X)),
    ("x + INTERVAL '3 months 2 days'", Binary("+", X, Span(Interval(months=3, micros=2 * DAY)))),
    ("x + INTERVAL '1:30' HOUR_MINUTE", Binary("+", X, Span(Interval(micros=HOUR + 30 * MINUTE)))),
    ("x + INTERVAL c DAY", Binary("+", X, Binary("*", Span(Interval(micros=DAY)), C))),
    ("CAST(a AS timestamptz)", Cast(A, "timestamptz")),
    ("a::TIMESTAMPTZ", Cast(A, "timestamptz")),
    ("a:::INT", Cast(A, "integer")),
    ("CAST(`a` AS SIGNED)", Cast(A, "integer")),
    ("a::varchar(5)", Cast(A, "text")),
    ("timestamp '2030-01-01 00:00:00'", Cast(Text("2030-01-01 00:00:00"), "timestamp")),
    ("(x + '5 minutes') AT TIME ZONE 'UTC'", Cast(X_AND_FIVE, "utc")),
    ("a AND NOT b OR c", Binary("OR", Binary("AND", A, Unary("NOT", B)), C)),
    ("(a + 1) * 2 % b", Binary("%", Binary("*", Binary("+", A, ONE), TWO), B)),
    ("-a / 2", Binary("/", Unary("-", A), TWO)),
    ("a <> b", Binary("<>", A, B)),
    ("a != b", Binary("<>", A, B)),
    ("a <= b", Binary("<=", A, B)),
    ("a IS DISTINCT FROM b", Binary("IS DISTINCT FROM", A, B)),
    ("a <=> b", Binary("IS NOT DISTINCT FROM", A, B)),
    ("a || 'x'", Binary("||", A, Text("x"))),
    ("a IN (1, 2)", Membership(A, (ONE, TWO))),
    ("a NOT IN (1)", Unary("NOT", Membership(A, (ONE,)))),
    ("a BETWEEN 1 AND 2", BETWEEN),
    ("a NOT BETWEEN 1 AND 2", Unary("NOT", BETWEEN)),
    ("a IS NULL", Unary("IS NULL", A)),
    ("a IS NOT NULL", Unary("IS NOT NULL", A)),
    ("`a` IS NOT NULL", Unary("IS NOT NULL", A)),
    ("a IS NOT TRUE", Binary("IS DISTINCT FROM", A, Boolean(True))),
    ("a LIKE 'x%'", Binary("LIKE", A, Text("x%"))),
    ("a NOT LIKE 'x;--%'", Unary("NOT", Binary("LIKE", A, Text("x;--%")))),
    ("a ->> 'b'", JsonPath(A, ("b",))),
    ("a -> 'b' ->> 'c'", JsonPath(A, ("b", "c"))),
    ("a -> 'b' ->> 0", JsonPath(A, ("b", 0))),
    ("a::jsonb ->> 'b'", JsonPath(A, ("b",))),
    ("`a` ->> '$.b.c'", JsonPath(A, ("b", "c"))),
    ("a ->> '$.b[1]'", JsonPath(A, ("b", 1))),
    ("json_extract(a, '$.b.c')", JsonPath(A, ("b", "c"))),
    ("JSON_UNQUOTE(JSON_EXTRACT(a, '$.b'))", JsonPath(A, ("b",))),
    ("(a ->> 'b')::timestamptz", Cast(JsonPath(A, ("b",)), "timestamptz")),
    ("to_timestamp(a)", Call("to_timestamp", (A,))),
    ("FROM_UNIXTIME(a)", Call("to_timestamp", (A,))),
    ("date_trunc('day', a)", Call("date_trunc_day", (A,))),
    ("round(abs(a), 2)", Call("round", (Call("abs", (A,)), TWO))),
    ("lower(upper(a))", Call("lower", (Call("upper", (A,)),))),
    ("1.50", Number("1.50")),
    ("true", Boolean(True)),
    ("NULL", Null()),
    ('"odd ""name; -- "', ColumnRef('odd "name; -- ')),
    ("`a``b`", ColumnRef("a`b")),
    ("((a))", A),
]


@pytest.mark.parametrize(("text", "expected"), UNDERSTOOD)
def test_understood(text: str, expected: Node) -> None:
    assert parse_expression(text, columns=None) == expected


@pytest.mark.parametrize(
    ("text", "column", "match"),
    [
        ("(SELECT 1)", 2, "sub-queries"),
        ("a IN (SELECT b FROM t)", 7, "sub-queries"),
        ("EXISTS (SELECT 1)", 1, "sub-queries"),
        ("a UNION SELECT 1", 9, "sub-queries"),
        ("count(*)", 1, "aggregates such as count"),
        ("a + max(b)", 5, "aggregates such as max"),
        ("seen_at + 30 days", 14, "durations are written INTERVAL '30 days'"),
        ("sum(a) OVER ()", 8, "window functions"),
        ("random()", 1, "another value at each call"),
        ("clock_timestamp()", 1, "another value at each call"),
        ("gen_random_uuid()", 1, "another value at each call"),
        ("pg_sleep(5)", 1, "another value at each call"),
        ("load_extension(a)", 1, "function load_extension"),
        ("a + ?", 5, "parameters"),
        ("a + $1", 5, "parameters"),
        ("a + :p", 5, "parameters"),
        ("@@version", 1, "variables"),
        ("*", 1, "\\* is not allowed"),
        ("a; DROP TABLE t", 2, "second statement"),
        ("; DROP DATABASE defaultdb", 1, "second statement"),
        ("a b", 3, "nothing else"),
        ("a AS b", 6, "nothing else"),
        ("a FROM t", 1, "nothing else"),
        ("a LIMIT 1", 1, "nothing else"),
        ("DISTINCT a", 1, "nothing else"),
        ("now(), now()", 1, "found 2"),
        ("a -- comment", 3, "comments"),
        ("a /* ' */ + b", 3, "comments"),
        ("a /*!50000 + sleep(5) */", 3, "comments"),
        ("'open", 1, "never closed"),
        ('"open', 1, "never closed"),
        ("a +", 3, "not a valid expression"),
        ("...", 1, "not a valid expression"),
        ("t.a", 3, "without its table"),
        ("a + 'abc'", 5, "no interval"),
        ("a + INTERVAL '-1 day'", 1, "negative"),
        ("a AT TIME ZONE 'CET'", 16, "UTC"),
        ("a::xml", 1, "cast to XML"),
        ("a[1]", 1, "not supported"),
        ("foo(a)", 1, "function foo\\(\\) is not known"),
        ("date_trunc('month', a)", 1, "'day' only"),
        ("{{ a }}", 1, "has no {"),
        ("DROP TABLE t", 1, "not a valid expression"),
        ("(" * 500 + "a" + ")" * 500, 1, "nested too deeply|not a valid"),
        ("a" + " + a" * 3000, 1, "at most 10000"),
    ],
)  # fmt: skip
def test_refused(text: str, column: int, match: str) -> None:
    with pytest.raises(TtlSyntaxError, match=match) as caught:
        parse_expression(text, columns=None)
    assert caught.value.line == 1
    if "nested" not in match:
        assert caught.value.column == column


def test_places_on_later_lines() -> None:
    with pytest.raises(TtlSyntaxError) as caught:
        parse_expression("a +\n  foo(b)", columns=None)
    assert (caught.value.line, caught.value.column) == (2, 3)


def test_columns_must_exist() -> None:
    columns = ["created_at", "Expiration", "id"]
    assert parse_expression("expiration", columns=columns) == ColumnRef("Expiration")
    with pytest.raises(TtlSyntaxError, match="no column 'expiraton'") as caught:
        parse_expression("id + expiraton", columns=columns)
    assert caught.value.column == 6
    assert caught.value.hint is not None
    assert "Expiration" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", ("x", Interval())),
        ("(x)", ("x", Interval())),
        ("x + '3 months'", ("x", Interval(months=3))),
        ("INTERVAL 1 DAY + `x`", ("x", Interval(micros=DAY))),
        ("x - '1 day'", None),
        ("x::timestamptz + '1 day'", None),
        ("x + y", None),
        ("now()", None),
    ],
)
def test_recognised_columns(text: str, expected: tuple[str, Interval] | None) -> None:
    assert recognise_column(parse_expression(text, columns=None)) == expected


WORDS = ["a", "b", "(", ")", "+", "-", "'5 minutes'", "now()", "if(", ",", "case", "when", "end", "then", "select", ";",
         "/*", "*/", "--", "'", '"', "`", "interval", "1", "day", "::", "date", "in", "not", "and", "sleep(",
         "from"]  # fmt: skip


@given(text=st.one_of(st.text(max_size=30), st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)))
def test_any_text_is_a_tree_of_known_nodes_or_a_clear_error(text: str) -> None:
    try:
        tree = parse_expression(text, columns=None)
    except LapseError:
        return
    for node in walk(tree):
        match node:
            case Binary(operator=operator):
                assert operator in BINARY_OPERATORS
            case Call(function=function):
                assert function in FUNCTIONS
            case Cast(type=kind):
                assert kind in CAST_TYPES
            case _:
                pass


def test_plain_statements_do_not_pay_for_sqlglot() -> None:
    program = (
        "import sys, lapse.ddl as d; d.parse('INSERT INTO t VALUES (1)', 'sqlite');"
        "d.parse('ALTER TABLE t SET (ttl_expire_after = \\'5m\\')', 'sqlite'); assert 'sqlglot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})
