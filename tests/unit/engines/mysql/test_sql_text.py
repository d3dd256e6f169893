"""The exact SQL for both servers: what differs between them is chosen by flags, not by a running server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import make_url

from lapse.catalog import schema
from lapse.engines.action import Delete, Rows
from lapse.engines.mysql import keys, references, session, times
from lapse.engines.mysql.delete import TaskSql
from lapse.engines.mysql.keys import Form, Part, Walk
from lapse.engines.mysql.names import literal, live_view, quote, source, update_trigger
from lapse.engines.mysql.session import Flavour
from lapse.errors import Drift, LapseError, Unsupported, UnsupportedUrl
from lapse.model.interval import DAY, HOUR, Interval
from lapse.model.table import CATALOG_TABLES, Column, FkAction, Reference, Table, TableKind, TableName

ID = Walk(index="PRIMARY", parts=(Part(column="id", form=Form.NUMBER),))
OLD = "`ts` <= 5"
PLAN = TaskSql(source="`t`", key=ID, condition=OLD, of_the_row=OLD, comment="/* lapse ttl t */", action=Delete())
COMPOSITE = Walk(
    index="PRIMARY",
    parts=(
        Part(column="a", form=Form.TEXT, charset="latin1", collation="latin1_german2_ci"),
        Part(column="b", form=Form.NUMBER, descending=True),
        Part(column="c", form=Form.ORDINAL, members=4),
    ),
)


def test_mariadb_deletes_by_key_and_does_not_wait() -> None:
    assert "; ".join(PLAN.delete([(1,), (2,)])) == (
        "/* lapse ttl t */ SET STATEMENT innodb_lock_wait_timeout = 0 FOR "
        "DELETE FROM `t` WHERE `id` IN (1, 2) AND (`ts` <= 5) IS TRUE"
    )


def test_mariadb_deletes_a_dense_range_by_itself() -> None:
    assert "; ".join(PLAN.delete_range(["`id` > 5", "`id` <= 9"], 100)) == (
        "/* lapse ttl t */ SET STATEMENT innodb_lock_wait_timeout = 0 FOR "
        "DELETE FROM `t` WHERE `id` > 5 AND `id` <= 9 AND (`ts` <= 5) IS TRUE ORDER BY `id` LIMIT 100"
    )


def test_mysql_locks_what_is_free_and_deletes_that() -> None:
    plan = replace(PLAN, refuses_to_wait=False)
    assert plan.lock([(1,), (2,)]) == (
        "/* lapse ttl t */ SELECT `id` FROM `t` FORCE INDEX (`PRIMARY`) WHERE `id` IN (1, 2) AND (`ts` <= 5) IS TRUE "
        "FOR UPDATE SKIP LOCKED"
    )
    assert plan.delete([(1,)])[0] == "/* lapse ttl t */ DELETE FROM `t` WHERE `id` IN (1) AND (`ts` <= 5) IS TRUE"


def test_mysql_cannot_read_the_table_it_deletes_from() -> None:
    plan = replace(PLAN, free="NOT EXISTS (SELECT 1 FROM `t` AS x)", free_in_delete=False, refuses_to_wait=False)
    assert "NOT EXISTS" not in plan.delete([(1,)])[0]
    assert "NOT EXISTS" in plan.lock([(1,)])


def test_no_delete_without_condition() -> None:
    with pytest.raises(LapseError, match="without its condition"):
        Rows(table="`t`", condition=" ", bound="`id` IN (1)")


def test_ranges_of_a_composite_key_are_written_out() -> None:
    key = ("E4", 5, 2)
    a = "`a` {} _latin1 x'E4' COLLATE latin1_german2_ci"
    assert COMPOSITE.after(key) == (
        f"(({a.format('>')}) OR ({a.format('=')} AND `b` < 5) OR ({a.format('=')} AND `b` = 5 AND `c` IN (3, 4)))"
    )
    assert COMPOSITE.until(("E4",), inclusive=True) == f"(({a.format('<')}) OR ({a.format('=')}))"
    assert COMPOSITE.order == "`a`, `b` DESC, `c`"
    assert COMPOSITE.backwards == "`a` DESC, `b`, `c` DESC"


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (Form.NUMBER, 2**64 - 1, "18446744073709551615"),
        (Form.FLOAT, 0.1, "0.1e0"),
        (Form.FLOAT, 1e300, "1e+300"),
        (Form.DECIMAL, "-1.50", "-1.50"),
        (Form.BYTES, "0027", "x'0027'"),
        (Form.MOMENT, "2026-01-01 00:00:00", "'2026-01-01 00:00:00'"),
        (Form.ORDINAL, 3, "3"),
    ],
)
def test_literals(form: Form, value: object, text: str) -> None:
    assert Part(column="k", form=form).literal(value) == text


@pytest.mark.parametrize(("form", "value"), [(Form.BYTES, "0'"), (Form.DECIMAL, "1; DROP"), (Form.TEXT, "zz")])
def test_a_tampered_position_is_refused(form: Form, value: str) -> None:
    with pytest.raises(Drift):
        Part(column="k", form=form, charset="utf8mb4", collation="utf8mb4_bin").literal(value)


def test_keys_survive_being_stored() -> None:
    walk = Walk(index="i", parts=(Part(column="f", form=Form.FLOAT), Part(column="n", form=Form.NUMBER)))
    assert keys.decode(keys.encode((0.1, 2**64 - 1)), walk) == (0.1, 2**64 - 1)
    assert keys.decode(keys.encode((0.1,)), walk) == (0.1,)


@pytest.mark.parametrize(
    ("text", "product", "version"),
    [
        ("10.11.19-MariaDB-0+deb12u1", "MariaDB", (10, 11, 19)),
        ("5.5.5-10.6.4-MariaDB", "MariaDB", (10, 6, 4)),
        ("8.0.36", "MySQL", (8, 0, 36)),
        ("8.4.0-ubuntu", "MySQL", (8, 4, 0)),
    ],
)
def test_flavours(text: str, product: str, version: tuple[int, ...]) -> None:
    flavour = Flavour.from_text(text)
    assert (flavour.product, flavour.version) == (product, version)
    flavour.check()
    assert flavour.can_refuse_to_wait == flavour.reads_the_table_it_deletes_from == (product == "MariaDB")


@pytest.mark.parametrize("text", ["5.7.44", "8.0.22", "10.5.1-MariaDB", "nonsense"])
def test_old_servers_are_refused(text: str) -> None:
    with pytest.raises(UnsupportedUrl, match="Lapse needs"):
        Flavour.from_text(text).check()


def test_sessions_are_the_same_everywhere() -> None:
    first, second = session.session_statements(deleting=False, by_key_only=False, binlog=True)
    assert "time_zone = '+00:00'" in first and "sql_mode = 'STRICT_TRANS_TABLES" in first
    assert second == "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
    quiet = session.session_statements(deleting=True, by_key_only=True, binlog=False)
    assert quiet[-1] == "SET SESSION sql_log_bin = 0"
    assert "sql_safe_updates = 1" in quiet[0]


def test_lapse_takes_its_own_option_out_of_the_url() -> None:
    options = session.read_url(make_url("mariadb://u@h/d?lapse_binlog=off&charset=utf8mb4"))
    assert (options.binlog, options.url.drivername, dict(options.url.query)) == (
        False,
        "mysql+pymysql",
        {"charset": "utf8mb4"},
    )


def test_replicas_are_reached_like_the_primary() -> None:
    options = session.read_url(make_url("mysql://u:p@db1:3307/d?lapse_replicas=db2, db3:3308,[::1]:3309"))
    assert [(url.username, url.password, url.host, url.port) for url in options.replicas] == [
        ("u", "p", "db2", 3307),
        ("u", "p", "db3", 3308),
        ("u", "p", "::1", 3309),
    ]
    assert dict(options.url.query) == {}


def test_what_keeping_deletes_out_of_the_log_takes() -> None:
    assert Flavour(product="MariaDB", version=(10, 11, 1)).binlog_privilege == "BINLOG ADMIN"
    assert Flavour(product="MySQL", version=(8, 0, 36)).binlog_privilege == "SESSION_VARIABLES_ADMIN"


WHOLE = " AND month(`c`) > 0 AND dayofmonth(`c`) > 0"


@pytest.mark.parametrize(
    ("kind", "zone", "sql"),
    [
        ("timestamp(3)", "Asia/Tokyo", "(`c` >= '1970-01-01 00:00:01' AND `c` <= '2026-03-14 12:00:00.123')"),
        ("timestamp", "UTC", "(`c` >= '1970-01-01 00:00:01' AND `c` <= '2026-03-14 12:00:00')"),
        ("datetime(6)", "Asia/Tokyo", f"(`c` >= '1000-01-01 00:00:00' AND `c` <= '2026-03-14 21:00:00.123456'{WHOLE})"),
        ("date", "Asia/Tokyo", f"(`c` >= '1000-01-01' AND `c` <= '2026-03-14'{WHOLE})"),
        ("bigint(20) unsigned", "Asia/Tokyo", "(`c` >= 100000000 AND `c` <= 1773489600)"),
    ],
)
def test_thresholds(kind: str, zone: str, sql: str) -> None:
    column = Column(name="c", type=kind)
    cutoff = datetime(2026, 3, 15, 12, 0, 0, 123_456, tzinfo=UTC)
    found = times.kind_of(column)
    assert found is not None
    assert times.threshold(column, found, Interval(micros=DAY), cutoff, zone).sql == sql


def test_intervals() -> None:
    assert times.shifted("x", Interval(months=1, micros=HOUR), "+") == "((x + INTERVAL 1 MONTH) + INTERVAL 1 HOUR)"
    assert times.shifted("x", Interval(months=1, micros=HOUR), "-") == "((x - INTERVAL 1 HOUR) - INTERVAL 1 MONTH)"
    assert times.shifted("x", Interval(micros=1500), "+") == "(x + INTERVAL 1500 MICROSECOND)"


def test_hostile_names() -> None:
    assert quote("a`b") == "`a``b`"
    assert literal("a'b\\") == "'a''b\\\\'"
    assert source(TableName("t`", "s", "p`")) == "`s`.`t```  PARTITION (`p```)".replace("  ", " ")
    assert len(update_trigger(TableName("x" * 64)).name) <= 64
    with pytest.raises(Unsupported):
        live_view(TableName("x" * 62))


def test_a_row_that_refers_to_itself_holds_itself() -> None:
    own = Reference(table=TableName("t"), columns=("parent",), referred=("id",), action=FkAction.RESTRICT, indexed=True)
    table = Table(name=TableName("t"), kind=TableKind.TABLE, columns=(), key=("id",), referenced_by=(own,))
    assert references.unreferenced(table) == (
        "NOT EXISTS (SELECT 1 FROM `t` AS lapse_child WHERE lapse_child.`parent` = `t`.`id`)"
    )
    assert references.refers_to_itself(table)


def test_the_catalogs_tables_are_known_by_name() -> None:
    assert set(CATALOG_TABLES) == set(schema.metadata.tables)
