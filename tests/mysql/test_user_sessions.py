"""The user's session is the user's: what the server gives to any client, before and after Lapse has had a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pymysql
import pytest

import lapse
from lapse.app import Lapse
from lapse.errors import PolicyConflict
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness

HOSTILE = {
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
    "time_zone": "'-08:00'",
    "completion_type": "'CHAIN'",
    "max_join_size": "10",
    "sql_select_limit": "3",
    "sql_safe_updates": "1",
    "innodb_lock_wait_timeout": "77",
    "lock_wait_timeout": "78",
    "foreign_key_checks": "0",
    "group_concat_max_len": "16",
}
VOLATILE = {
    "pseudo_thread_id",
    "timestamp",
    "rand_seed1",
    "rand_seed2",
    "warning_count",
    "error_count",
    "insert_id",
    "in_transaction",
    "statement_id",
}
TABLE = "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, at TIMESTAMP NULL) TTL = at + INTERVAL 1 DAY"


@pytest.fixture
def hostile(server: MariadbServer) -> Iterator[MariadbServer]:
    """A server whose global settings are what Lapse would never choose."""
    settings = {**HOSTILE, server.isolation: "'SERIALIZABLE'"}
    values = server.execute(f"SELECT {', '.join(f'@@global.{name}' for name in settings)}")[0]
    server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in settings.items()))
    yield server
    for name, value in zip(settings, values, strict=True):
        server.execute(f"SET GLOBAL {name} = {value!r}")


@pytest.fixture
def names(server: MariadbServer) -> list[str]:
    """Of all variables that a session can read; in a SELECT without a table no limit counts."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_big_selects = 1, sql_select_limit = 100000")
        cursor.execute("SHOW SESSION VARIABLES")
        return [str(name) for name, _ in cursor.fetchall() if name not in VOLATILE]


Find = Callable[[Any], dict[str, Any]]


@pytest.fixture
def find(names: list[str]) -> Find:
    """The variables of a cursor's session."""

    def found(cursor: Any) -> dict[str, Any]:
        cursor.execute(f"SELECT {', '.join(f'@@{name}' for name in names)}")
        return dict(zip(names, cursor.fetchone(), strict=True))

    return found


def test_a_connection_is_as_the_server_makes_it(h: Harness, hostile: MariadbServer, find: Find) -> None:
    database = h.url.rpartition("/")[2]
    with closing(pymysql.connect(host="127.0.0.1", port=hostile.port, user="root", database=database)) as plain:
        expected = find(plain.cursor())
    assert (expected["completion_type"], expected["time_zone"]) == ("CHAIN", "-08:00")
    with closing(lapse.connect(h.url)) as connection:
        assert find(connection.cursor()) == expected
    with h.open() as db, db.session() as session:
        found = find(session.raw.cursor())
        assert found.pop("autocommit") == 1
        assert found == {name: value for name, value in expected.items() if name != "autocommit"}


def test_statements_mean_what_they_mean_to_the_server(h: Harness, hostile: MariadbServer) -> None:
    with closing(lapse.connect(h.url)) as connection:
        connection.execute("CREATE TABLE u (id INT PRIMARY KEY, path TEXT)")
        connection.execute(r"INSERT INTO u VALUES (1, 'a\' || 'b'), (2, '')")
        connection.execute("SET sql_safe_updates = 0")
        connection.execute('DELETE FROM u WHERE "id" <> 1')
        assert connection.execute("SELECT * FROM u").fetchall() == [(1, r"a\b")]
        ((hours,),) = connection.execute("SELECT timestampdiff(HOUR, utc_timestamp(), now())").fetchall()
        assert hours == -8


@pytest.mark.parametrize("autocommit", [True, False])
def test_declaring_puts_every_setting_back(h: Harness, hostile: MariadbServer, autocommit: bool, find: Find) -> None:
    statements = [
        TABLE,
        "ALTER TABLE t SET (ttl_pause = 'on', ttl_hide_expired = 'view')",
        "CREATE TABLE m (id INT PRIMARY KEY) WITH (ttl_expire_after = '1 hour')",
        "ALTER TABLE m RENAME TO n",
        "SHOW CREATE TABLE n",
        "SHOW SCHEDULES",
        "SET GLOBAL lapse_mode = 'fast'",
        "ALTER TABLE t ADD COLUMN more INT",
        "ALTER TABLE n RESET (ttl)",
        "DROP TABLE n",
    ]
    own = ["SET sql_mode = 'ANSI', time_zone = '+05:30', sql_select_limit = 1", "SET last_insert_id = 41"]
    with closing(lapse.connect(h.url, autocommit=autocommit)) as connection:
        for statement in own:
            connection.execute(statement)
        before = find(connection.cursor())
        for statement in statements:
            connection.execute(statement)
            assert find(connection.cursor()) == before, statement
        with pytest.raises(lapse.ProgrammingError, match="depends on it"):
            connection.execute("ALTER TABLE t DROP COLUMN at")
        assert find(connection.cursor()) == before
        connection.commit()
    with h.open() as db:
        assert [str(stored.table) for stored in db.policies()] == ["t"]


def test_policies_work_on_such_a_server(h: Harness, hostile: MariadbServer) -> None:
    """Lapse's own sessions have one profile: CHAIN would keep its transactions open, the limits would hide rows."""
    with Lapse(h.url) as db:
        for name in ("a", "b", "c", "d", "e"):
            db.execute(TABLE.replace("TABLE t", f"TABLE {name}"))
            db.execute(f"INSERT INTO {name} (at) VALUES (now() - INTERVAL 30 HOUR), (now() - INTERVAL 20 HOUR)")
        assert db.run().deleted == 5
        assert len(db.policies()) == 5
        (first, *_) = db.policies()
        assert abs((datetime.now(UTC) - first.created_at).total_seconds()) < 60
        with pytest.raises(PolicyConflict):
            db.execute("ALTER TABLE a DROP COLUMN at")
        db.execute("DROP TABLE a")
        assert len(db.policies()) == 4


def test_locked_tables_stay_locked(h: Harness, server: MariadbServer) -> None:
    h.sql("CREATE TABLE u (id INT PRIMARY KEY)")
    with closing(lapse.connect(h.url)) as connection:
        connection.execute("LOCK TABLES u WRITE")
        connection.execute("INSERT INTO u VALUES (1)")
        with server.connect(h.url.rpartition("/")[2]) as other, other.cursor() as cursor:
            cursor.execute("SET lock_wait_timeout = 1")
            with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
                cursor.execute("INSERT INTO u VALUES (2)")
        connection.rollback()
        assert connection.execute("SELECT * FROM u").fetchall() == []
        connection.execute("UNLOCK TABLES")
    assert h.ids("u") == []


def test_a_declaration_belongs_to_the_transaction_until_the_schema_changes(h: Harness) -> None:
    h.sql(TABLE)
    with closing(lapse.connect(h.url)) as connection:
        connection.execute("INSERT INTO t VALUES (1, NULL)")
        connection.execute("ALTER TABLE t SET (ttl_job_cron = '@daily')")
        connection.rollback()
        assert h.db.policy("t").policy.job_cron is None
        assert h.ids("t") == []
        connection.execute("INSERT INTO t VALUES (2, NULL)")
        connection.execute("ALTER TABLE t SET (ttl_hide_expired = 'view')")
        connection.rollback()
        assert h.db.policy("t").policy.hide_expired == "view"
        assert h.ids("t") == [2]


def test_statements_that_need_the_catalog_leave_the_locks_alone(h: Harness, server: MariadbServer) -> None:
    h.sql(TABLE)
    with closing(lapse.connect(h.url)) as connection:
        connection.execute("LOCK TABLES t WRITE")
        with pytest.raises(lapse.OperationalError, match="not locked") as raised:
            connection.execute("ALTER TABLE t SET (ttl_pause = 'on')")
        assert "UNLOCK TABLES" in (raised.value.hint or "")
        with server.connect(h.url.rpartition("/")[2]) as other, other.cursor() as cursor:
            cursor.execute("SET lock_wait_timeout = 1")
            with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
                cursor.execute("INSERT INTO t VALUES (2, NULL)")


@pytest.mark.parametrize("mode", ["ORACLE", "ANSI", "NO_BACKSLASH_ESCAPES,IGNORE_SPACE,HIGH_NOT_PRECEDENCE", ""])
def test_declarations_work_in_any_sql_mode(h: Harness, mode: str) -> None:
    if mode == "ORACLE" and not h.features.replaces_tables:
        pytest.skip("a mode of MariaDB's")
    with closing(lapse.connect(h.url, autocommit=True)) as connection:
        connection.execute(f"SET sql_mode = '{mode}'")
        before = connection.execute("SELECT @@sql_mode").fetchall()
        options = "ttl_expire_after = '1 day', ttl_hide_expired = 'view'"
        connection.execute(f"CREATE TABLE x (id INT PRIMARY KEY, note VARCHAR(10)) WITH ({options})")
        connection.execute("INSERT INTO x (id) VALUES (1)")
        connection.execute("UPDATE x SET note = 'a'")
        connection.execute("ALTER TABLE x RENAME TO y")
        assert connection.execute("SELECT id FROM y_live").fetchall() == [(1,)]
        assert connection.execute("SELECT @@sql_mode").fetchall() == before
    assert [finding for finding in h.db.doctor() if finding.level == "problem"] == []
