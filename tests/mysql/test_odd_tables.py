"""Tables that are allowed but unusual, and declarations that fail half-way."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from time import monotonic

import pytest
from sqlalchemy import make_url

from lapse.app import Lapse
from lapse.errors import DatabaseError, Unsupported
from lapse.model.job import JobStatus, PathKind
from lapse.model.table import TableName
from tests.backends.mariadb import MariadbBackend, MariadbServer
from tests.conformance.harness import Harness
from tests.mysql.numbers import numbers


def _name(h: Harness) -> str:
    return str(make_url(h.url).database)


def test_an_ignored_index_is_not_used(h: Harness, backend: MariadbBackend) -> None:
    hidden, shown = backend.unused_index
    h.sql(f"CREATE TABLE events (id INT PRIMARY KEY, ts DATETIME, KEY by_ts (ts) {hidden}) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"INSERT INTO events VALUES (1, {h.at(days=-2)}), (2, {h.at()})")
    job = h.run_one()
    assert (job.status, job.path.kind, job.counts.deleted) == (JobStatus.FINISHED, PathKind.PHYSICAL, 1)
    h.sql(f"ALTER TABLE events ALTER INDEX by_ts {shown}")
    assert h.run_one().path.kind is PathKind.INDEX


@pytest.mark.parametrize("name", ["a*/b", "t*/ FROM victim", "t'*/", "/*+ x", "sel`ect", "t@x"])
@pytest.mark.parametrize(
    "key", ["id INT PRIMARY KEY", "id VARCHAR(9) PRIMARY KEY", "id INT NOT NULL, UNIQUE KEY `k*/` (id)"]
)
def test_a_name_ends_no_comment_in_a_statement(h: Harness, name: str, key: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    h.sql("CREATE TABLE victim (id INT PRIMARY KEY)")
    h.sql("INSERT INTO victim VALUES (1), (2)")
    h.sql(f"CREATE TABLE {quoted} ({key}, ts DATETIME) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"INSERT INTO {quoted} VALUES ('1', {h.at(days=-2)}), ('2', {h.at()})")
    assert h.run(None).deleted == 1
    assert [str(row[0]) for row in h.rows(f"SELECT id FROM {quoted}")] == ["2"]
    assert h.ids("victim") == [1, 2]


def test_a_system_versioned_table_says_that_it_keeps_history(h: Harness) -> None:
    if not h.features.keeps_history:
        pytest.skip("no table is system-versioned")
    made = h.sql(
        "CREATE TABLE events (id INT PRIMARY KEY, ts DATETIME) WITH SYSTEM VERSIONING TTL = ts + INTERVAL 1 DAY"
    )
    assert any("history" in notice for notice in made.notices)
    h.sql(f"INSERT INTO events VALUES (1, {h.at(days=-2)}), (2, {h.at()})")
    assert h.run_one().counts.deleted == 1
    assert h.ids() == [2]


def test_a_comment_on_a_system_versioned_table_is_read(h: Harness, server: MariadbServer) -> None:
    if not h.features.keeps_history:
        pytest.skip("no table is system-versioned")
    server.execute(
        "CREATE TABLE visits (id INT PRIMARY KEY, at BIGINT UNSIGNED NOT NULL) COMMENT='ttl_duration=60;ttl_col=at;'"
        " WITH SYSTEM VERSIONING",
        database=_name(h),
    )
    with h.db.engine.connection() as connection:
        assert [each.table.name for each in h.db.engine.comments(connection)] == ["visits"]


def test_the_live_view_has_the_columns_that_a_select_shows(h: Harness) -> None:
    h.clock.set(datetime.now(UTC))
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, secret INT INVISIBLE DEFAULT 7, ts DATETIME)")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour', ttl_hide_expired = 'view')")
    h.sql("INSERT INTO events (id, ts) VALUES (1, NULL)")
    assert h.sql("SELECT * FROM events_live").columns == h.sql("SELECT * FROM events").columns == ("id", "ts")


def test_a_chain_of_cascades_that_is_too_long_holds_its_rows_only(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INT PRIMARY KEY, parent INT, ts DATETIME,"
        " FOREIGN KEY (parent) REFERENCES events (id) ON DELETE CASCADE) TTL = ts + INTERVAL 1 DAY"
    )
    h.sql(f"INSERT INTO events SELECT seq, nullif(seq - 1, 0), {h.at(days=-2)} FROM {numbers(30)}")
    h.sql(f"INSERT INTO events SELECT seq + 1000, NULL, {h.at(days=-2)} FROM {numbers(200)}")
    job = h.run_one()
    assert job.status is JobStatus.FINISHED
    assert job.counts.held > 0
    assert h.rows("SELECT count(*) FROM events WHERE id > 1000") == [(0,)]
    h.advance(hours=1)
    h.run_one()
    assert h.ids() == []


def test_reading_slowly_counts_rows_and_not_the_gaps_between_them(h: Harness) -> None:
    """Ten thousand rows, then ten million keys that nobody has, then one row."""
    h.events()
    h.sql(f"INSERT INTO events (id, ts) SELECT seq, {h.at()} FROM {numbers(4000)}")
    h.sql(f"INSERT INTO events (id, ts) SELECT seq + 3000000, {h.at()} FROM {numbers(2000)}")
    h.sql("ALTER TABLE events SET (ttl_select_rate_limit = 4000)")
    started = monotonic()
    h.run_one()
    assert monotonic() - started < 6


@pytest.fixture(scope="module")
def logging_server(backend: MariadbBackend) -> Iterator[MariadbServer]:
    started = backend.start("--server-id=1", *backend.server.logging)
    started.execute("CREATE DATABASE shop")
    yield started
    started.close()


def test_a_declaration_without_the_right_to_make_triggers_leaves_nothing(logging_server: MariadbServer) -> None:
    logging_server.execute("DROP USER IF EXISTS owner@'%'", "CREATE USER owner@'%'", "GRANT ALL ON shop.* TO owner@'%'")
    logging_server.execute("DROP TABLE IF EXISTS carts", "CREATE TABLE carts (id INT PRIMARY KEY)", database="shop")
    before = logging_server.execute("SHOW CREATE TABLE carts", database="shop")
    with Lapse(f"{logging_server.url}/shop".replace("root@", "owner@")) as db:
        for _ in range(2):
            with pytest.raises(Unsupported, match="binary log"):
                db.execute("ALTER TABLE carts SET (ttl_expire_after = '1 hour')")
            assert logging_server.execute("SHOW CREATE TABLE carts", database="shop") == before
        with pytest.raises(Unsupported, match="binary log"):
            db.execute("CREATE TABLE baskets (id INT PRIMARY KEY) WITH (ttl_expire_after = '1 hour')")
        assert logging_server.execute("SHOW TABLES LIKE 'baskets'", database="shop") == []
        logging_server.execute("SET GLOBAL log_bin_trust_function_creators = 1")
        try:
            db.execute("ALTER TABLE carts SET (ttl_expire_after = '1 hour')")
            assert [finding.text for finding in db.doctor() if finding.level == "problem"] == []
        finally:
            logging_server.execute("SET GLOBAL log_bin_trust_function_creators = 0")
        if logging_server.drops_triggers:
            db.execute("ALTER TABLE carts RESET (ttl)")
            assert logging_server.execute("SHOW CREATE TABLE carts", database="shop") == before
            return
        # Lapse's trigger cannot be dropped either, and the policy stays whole.
        with pytest.raises(DatabaseError):
            db.execute("ALTER TABLE carts RESET (ttl)")
        assert len(db.policies()) == 1
        assert [finding.text for finding in db.doctor() if finding.level == "problem"] == []


def test_a_log_in_statement_format_is_named(logging_server: MariadbServer) -> None:
    logging_server.execute(
        "DROP TABLE IF EXISTS lists", "CREATE TABLE lists (id INT PRIMARY KEY, ts DATETIME)", database="shop"
    )
    logging_server.execute("SET GLOBAL binlog_format = 'STATEMENT'")
    try:
        with Lapse(f"{logging_server.url}/shop") as db, pytest.raises(DatabaseError, match="STATEMENT") as failure:
            db.execute("ALTER TABLE lists TTL = ts + INTERVAL 1 DAY")
            db.run("lists")
        assert "binlog_format" in str(failure.value.hint)
    finally:
        logging_server.execute("SET GLOBAL binlog_format = 'ROW'")


def test_a_trigger_whose_account_is_gone_is_found_and_made_again(h: Harness, server: MariadbServer) -> None:
    name = _name(h)
    server.execute("DROP USER IF EXISTS leaver@'%'", "CREATE USER leaver@'%'", f"GRANT ALL ON {name}.* TO leaver@'%'")
    h.sql("CREATE TABLE events (id INT PRIMARY KEY, body INT)")
    with Lapse(h.url.replace("root@", "leaver@"), clock=h.clock) as db:
        db.execute("ALTER TABLE events SET (ttl_expire_after = '1 hour')")
    h.sql("INSERT INTO events VALUES (1, 1)")
    server.execute(f"REVOKE UPDATE ON {name}.* FROM leaver@'%'")
    assert any("lacks UPDATE" in finding.text for finding in h.db.doctor())
    server.execute("DROP USER leaver@'%'")
    with pytest.raises(DatabaseError, match="definer"):
        h.sql("UPDATE events SET body = 2")
    (problem,) = [finding for finding in h.db.doctor() if finding.level == "problem"]
    assert "leaver@%" in problem.text
    h.db.doctor(repair=True)
    h.sql("UPDATE events SET body = 2")
    assert [finding.text for finding in h.db.doctor() if finding.level == "problem"] == []


def test_a_row_that_refers_to_itself_is_held_and_no_error(h: Harness) -> None:
    """InnoDB does not delete it, whoever asks."""
    h.sql(
        "CREATE TABLE events (id INT PRIMARY KEY, ts DATETIME, parent INT,"
        " FOREIGN KEY (parent) REFERENCES events (id)) TTL = ts + INTERVAL 1 DAY"
    )
    h.sql(f"INSERT INTO events VALUES (1, {h.at(days=-2)}, 1), (2, {h.at(days=-2)}, NULL), (3, {h.at(days=-2)}, 2)")
    for deleted in (2, 0):
        job = h.run_one()
        assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, deleted)
        assert (job.counts.held, job.counts.errors) == (1, 0)
    assert h.ids() == [1]


def test_how_many_rows_there_are_is_asked_of_the_storage_engine(h: Harness) -> None:
    """MySQL remembers an answer for a day."""
    h.events()
    with h.db.engine.connection() as connection:
        table = h.db.engine.describe(connection, TableName("events"))
        assert h.db.engine.estimate_rows(connection, table) == 0
        h.sql(f"INSERT INTO events SELECT seq, NULL FROM {numbers(2000)}")
        h.sql("ANALYZE TABLE events")
        assert 1000 < h.db.engine.estimate_rows(connection, table) < 3000
