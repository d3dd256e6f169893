"""ALTER TABLE: ours is cut, the rest stays, and changes under a policy are seen."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.ddl import parse_one
from lapse.ddl.lexer import DIALECTS
from lapse.errors import InvalidValue, LapseError, PolicyConflict, TtlSyntaxError, Unsupported
from lapse.model.interval import DAY, MINUTE, SECOND, Interval
from lapse.model.statement import AlterColumn, AlterTable, ColumnAction, RenameTable
from lapse.model.table import TableName

MANAGED = {"expire_after": Interval(micros=5 * MINUTE)}
COLUMN = {"column": "c", "interval": Interval(micros=DAY)}
TTL = "TTL = c + INTERVAL 1 DAY"
DROP, RENAME, RETYPE = ColumnAction.DROP, ColumnAction.RENAME, ColumnAction.RETYPE


def altered(text: str, dialect: str) -> AlterTable:
    statement = parse_one(text, dialect)
    assert isinstance(statement, AlterTable)
    return statement


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("actions", "left", "expected"),
    [
        ("SET (ttl_expire_after = '5 minutes')", "", MANAGED),
        ("SET (ttl_expire_after = '5 minutes', fillfactor = 70)", "SET (fillfactor = 70)", MANAGED),
        ("SET (ttl_expire_after = '5 minutes'), SET (fillfactor = 70)", "SET (fillfactor = 70)", MANAGED),
        ("ADD COLUMN x int, SET (ttl_expire_after = '5 minutes')", "ADD COLUMN x int", MANAGED),
        ("ADD COLUMN x int DEFAULT f(1, 2), SET (ttl_expire_after = '5m'), ADD y int",
         "ADD COLUMN x int DEFAULT f(1, 2), ADD y int", MANAGED),
        ("SET (ttl_expire_after = '5m'), SET (ttl_pause = on), ADD y int", "ADD y int", MANAGED | {"pause": True}),
        ("ADD y int, SET (ttl_expire_after = '5m'), SET (ttl_pause = on)", "ADD y int", MANAGED | {"pause": True}),
        (TTL, "", COLUMN),
        (f"{TTL} TTL_ENABLE = 'OFF'", "", COLUMN | {"pause": True}),
        (f"{TTL}, TTL_ENABLE = 'OFF'", "", COLUMN | {"pause": True}),
        (f"ENGINE = InnoDB {TTL} CHARSET = utf8", "ENGINE = InnoDB CHARSET = utf8", COLUMN),
        (f"ADD COLUMN x int, {TTL}", "ADD COLUMN x int", COLUMN),
        (f"/*T![ttl] {TTL} */", "", COLUMN),
        (f"/*T![ttl] {TTL}, TTL_ENABLE='OFF' */", "", COLUMN | {"pause": True}),
        (f"ADD COLUMN x int, /*T![ttl] {TTL} */", "ADD COLUMN x int", COLUMN),
        ("TTL_JOB_INTERVAL='1d'", "", {"job_interval": Interval(micros=DAY)}),
        ("TTL_ENABLE 'ON'", "", {"pause": False}),
        ("SET TTL", "", {"expire_after": Interval(micros=30 * DAY)}),
        ("SET TTL (expire_after = '5 mins')", "", MANAGED),
    ],
)  # fmt: skip
def test_set(actions: str, left: str, expected: dict[str, Any], dialect: str) -> None:
    statement = altered(f"ALTER TABLE t {actions};", dialect)
    assert statement.change.set == expected
    assert statement.text == (f"ALTER TABLE t {left}" if left else "")
    assert not statement.change.remove


@pytest.mark.parametrize("dialect", DIALECTS)
def test_reset_and_remove(dialect: str) -> None:
    for text in ("RESET (ttl)", "REMOVE TTL", "RESET (ttl, ttl_pause)", "/*T![ttl] REMOVE TTL */"):
        statement = altered(f"ALTER TABLE t {text}", dialect)
        assert statement.change.remove
        assert statement.text == ""
    statement = altered("ALTER TABLE t RESET (ttl_pause, fillfactor, ttl_expiration_expression)", dialect)
    assert statement.change.reset == {"pause", "expression", "column", "interval"}
    assert statement.text == "ALTER TABLE t RESET (fillfactor)"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_comment_replaces_the_expiry(dialect: str) -> None:
    text = "ALTER TABLE t COMMENT = 'ttl_duration=5;'"
    statement = altered(text, dialect)
    assert statement.change.set == {"expire_after": Interval(micros=5 * SECOND)}
    assert statement.change.reset == {"expression", "column", "interval", "partitions"}
    assert statement.text == (text if dialect == "mysql" else "")


@pytest.mark.parametrize(
    ("text", "table", "if_exists", "dialect"),
    [
        ("ALTER TABLE IF EXISTS s.t", TableName("t", "s"), True, "postgres"),
        ("ALTER TABLE ONLY t", TableName("t"), False, "postgres"),
        ("ALTER TABLE IF EXISTS ONLY t *", TableName("t"), True, "postgres"),
        ('ALTER TABLE "odd ""names; -- "', TableName('odd "names; -- '), False, "sqlite"),
        ('ALTER TABLE "events"', TableName("events"), False, "mysql"),
        ("ALTER IGNORE TABLE `a``b`", TableName("a`b"), False, "mysql"),
        ("ALTER TABLE [x y]", TableName("x y"), False, "sqlite"),
        ("alter table 日本", TableName("日本"), False, "sqlite"),
    ],
)
def test_names(text: str, table: TableName, if_exists: bool, dialect: str) -> None:
    statement = altered(f"{text} SET (ttl_expire_after = '5m')", dialect)
    assert (statement.table, statement.if_exists, statement.text) == (table, if_exists, "")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ("DROP COLUMN c", [(DROP, "c")]),
        ("DROP c", [(DROP, "c")]),
        ("DROP TTL", [(DROP, "TTL")]),
        ("DROP COLUMN IF EXISTS c CASCADE, ADD COLUMN d int", [(DROP, "c")]),
        ('DROP COLUMN "c d"', [(DROP, "c d")]),
        ("RENAME COLUMN c TO d", [(RENAME, "c")]),
        ("RENAME c TO d", [(RENAME, "c")]),
        ("ALTER COLUMN c TYPE bigint", [(RETYPE, "c")]),
        ("ALTER c SET DATA TYPE bigint", [(RETYPE, "c")]),
        ("MODIFY COLUMN c BIGINT", [(RETYPE, "c")]),
        ("CHANGE c d BIGINT", [(RENAME, "c"), (RETYPE, "c")]),
        ("CHANGE COLUMN c C BIGINT COMMENT 'ttl_duration=5;'", [(RETYPE, "c")]),
        ("DROP COLUMN a, DROP INDEX i, MODIFY b INT", [(DROP, "a"), (RETYPE, "b")]),
    ],
)
def test_columns(actions: str, expected: list[tuple[ColumnAction, str]], dialect: str) -> None:
    text = f"ALTER TABLE t {actions}"
    statement = parse_one(text, dialect)
    assert isinstance(statement, AlterColumn)
    folded = [(action, name.lower() if "TTL" in name and dialect == "postgres" else name) for action, name in expected]
    assert list(statement.actions) == folded
    assert statement.text == text


def test_column_changes_beside_ttl_are_seen() -> None:
    statement = altered(f"ALTER TABLE t DROP COLUMN c, {TTL}", "mysql")
    assert statement.actions == ((DROP, "c"),)
    assert statement.text == "ALTER TABLE t DROP COLUMN c"


@pytest.mark.parametrize(
    ("text", "old", "new", "dialect"),
    [
        ("ALTER TABLE a RENAME TO b", TableName("a"), TableName("b"), "sqlite"),
        ("ALTER TABLE s.a RENAME TO B", TableName("a", "s"), TableName("b", "s"), "postgres"),
        ("ALTER TABLE s.a RENAME TO b", TableName("a", "s"), TableName("b"), "mysql"),
        ("ALTER TABLE a RENAME AS b", TableName("a"), TableName("b"), "mysql"),
        ("ALTER TABLE a RENAME x.b", TableName("a"), TableName("b", "x"), "mysql"),
        ("ALTER TABLE a SET SCHEMA s", TableName("a"), TableName("a", "s"), "postgres"),
        ("ALTER TABLE a ADD COLUMN x int, RENAME TO b", TableName("a"), TableName("b"), "mysql"),
    ],
)
def test_renames(text: str, old: TableName, new: TableName, dialect: str) -> None:
    statement = parse_one(text, dialect)
    assert isinstance(statement, RenameTable)
    assert statement.renames == ((old, new),)
    assert statement.text == text


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("actions", "error", "match"),
    [
        (f"{TTL} REMOVE TTL", PolicyConflict, "TTL is set and TTL is removed"),
        ("TTL_ENABLE='OFF' REMOVE TTL", PolicyConflict, "removed in one statement"),
        ("SET (ttl_pause = 'on'), RESET (ttl)", PolicyConflict, "removed in one statement"),
        ("SET (ttl_pause = 'on'), RESET (ttl_pause)", PolicyConflict, "both set and reset"),
        (f"{TTL}, RESET (ttl_expiration_expression)", PolicyConflict, "both set and reset"),
        (f"{TTL}, RENAME TO u", Unsupported, "two statements|renames table"),
        ("RESET (ttl_expire_afer)", InvalidValue, "did you mean ttl_expire_after"),
        ("RESET (ttl_pause = 'on')", TtlSyntaxError, "takes no value"),
        ("SET (ttl_zzz = 1)", InvalidValue, "not known"),
        ("SET (ttl = 'off')", InvalidValue, "RESET \\(ttl\\)"),
        ("SET (ttl_expiration_expression = '...')", TtlSyntaxError, "not a valid expression"),
        ("REMOVE TTL,", TtlSyntaxError, "expected an action"),
        ("SET TTL (zzz = 1)", InvalidValue, "ttl_zzz"),
    ],
)
def test_refused(actions: str, error: type[LapseError], match: str, dialect: str) -> None:
    with pytest.raises(error, match=match):
        parse_one(f"ALTER TABLE t {actions}", dialect)


def test_an_error_in_an_expression_has_the_place_of_its_string() -> None:
    with pytest.raises(TtlSyntaxError) as caught:
        parse_one("ALTER TABLE t\nSET (ttl_expiration_expression = 'a +')", "sqlite")
    assert (caught.value.line, caught.value.column) == (2, 34)


OURS = ["SET (ttl_expire_after = '5m')", "RESET (ttl_label_metrics, ttl_job_cron)", "SET (ttl_select_batch_size=5)"]
THEIRS = ["ADD COLUMN a int DEFAULT f(1, 2)", "SET (fillfactor = 70)", "DROP COLUMN b", "ENGINE = x CHARSET = y"]


@given(
    actions=st.lists(st.sampled_from(OURS + THEIRS), min_size=1),
    separator=st.sampled_from([",", ", ", " , ", ",\n  ", " /* , */, "]),
    dialect=st.sampled_from(DIALECTS),
)
def test_what_is_left_is_what_was_not_ours(actions: list[str], separator: str, dialect: str) -> None:
    statement = parse_one(f"ALTER TABLE t {separator.join(actions)}", dialect)
    kept = [action for action in actions if action in THEIRS]
    expected = parse_one(f"ALTER TABLE t {separator.join(kept)}", dialect).text if kept else ""
    if len(kept) < len(actions):
        assert isinstance(statement, AlterTable)
        assert [part.strip() for part in re.split(r",(?![^(]*\))", _bare(statement.text))] == [
            part.strip() for part in re.split(r",(?![^(]*\))", _bare(expected))
        ]


def _bare(text: str) -> str:
    return text.replace("/* , */", "")


@pytest.mark.parametrize(
    "how", ["TABLE t NOWAIT", "TABLE t WAIT 5", "IGNORE ONLINE TABLE t", "OFFLINE TABLE IF EXISTS t WAIT 0"]
)
def test_words_before_the_action_are_passed_over(how: str) -> None:
    found = parse_one(f"ALTER {how} DROP COLUMN at", "mysql")
    assert isinstance(found, AlterColumn)
    assert (found.table, found.actions) == (TableName("t"), ((DROP, "at"),))


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("ALTER TABLE t DROP TTL", True),
        ("ALTER TABLE a.b DROP ttl", True),
        ("ALTER TABLE t DROP COLUMN ttl", False),
        ('ALTER TABLE t DROP "ttl"', False),
        ("ALTER TABLE t DROP IF EXISTS ttl", False),
        ("ALTER TABLE t DROP TTL, ADD COLUMN b INT", False),
        ("ALTER TABLE t ADD COLUMN b INT, DROP TTL", False),
    ],
)
def test_drop_ttl(text: str, may: bool) -> None:
    found = parse_one(text, "postgres")
    assert isinstance(found, AlterColumn)
    assert found.may_remove_ttl is may
