"""The PEP 249 connection: transactions, parameters, rows, errors, and TTL statements among ordinary ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import lapse
from lapse.clock import ManualClock

TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT) WITH (ttl_expiration_expression = 'at')"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
def connection(url: str) -> Iterator[lapse.Connection]:
    with closing(lapse.connect(url)) as connection:
        yield connection


def names(url: str) -> list[str]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as other:
        return [name for (name,) in other.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")]


def policies(url: str) -> list[str]:
    with lapse.open(url) as db:
        try:
            return [str(stored.table) for stored in db.policies()]
        except lapse.CatalogError:
            return []


def test_module_globals() -> None:
    assert (lapse.apilevel, lapse.threadsafety, lapse.paramstyle) == ("2.0", 1, "pyformat")


def test_exception_hierarchy() -> None:
    assert issubclass(lapse.Warning, Exception)
    assert issubclass(lapse.Error, Exception)
    assert issubclass(lapse.InterfaceError, lapse.Error)
    assert issubclass(lapse.DatabaseError, lapse.Error)
    for name in ("Data", "Operational", "Integrity", "Internal", "Programming", "NotSupported"):
        assert issubclass(getattr(lapse, f"{name}Error"), lapse.DatabaseError)
        assert getattr(lapse.Connection, f"{name}Error") is getattr(lapse, f"{name}Error")


def test_rows_and_description(connection: lapse.Connection) -> None:
    cursor = connection.cursor()
    assert cursor.description is None
    assert cursor.rowcount == -1
    cursor.execute("CREATE TABLE n (i INTEGER)")
    cursor.executemany("INSERT INTO n VALUES (?)", [(1,), (2,), (3,), (4,), (5,)])
    assert cursor.rowcount == 5
    cursor.execute("SELECT i, i * 2 AS twice FROM n ORDER BY i")
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["i", "twice"]
    assert cursor.fetchone() == (1, 2)
    assert cursor.fetchmany() == [(2, 4)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(3, 6), (4, 8)]
    assert list(cursor) == [(5, 10)]
    assert cursor.fetchone() is None
    cursor.setinputsizes([1])
    cursor.setoutputsize(10)
    assert connection.execute("INSERT INTO n VALUES (:i)", {"i": 9}).lastrowid == 6


def test_statements_reach_the_driver_as_they_are(connection: lapse.Connection) -> None:
    text = "SELECT  '%s; ?' /* a ; b */ AS \"odd  name\", ? -- ; end"
    cursor = connection.execute(text, ("x",))
    assert cursor.fetchall() == [("%s; ?", "x")]
    assert connection.paramstyle == "qmark"


def test_ttl_statements_take_part_in_the_transaction(connection: lapse.Connection, url: str) -> None:
    connection.execute(TABLE)
    connection.execute("INSERT INTO t VALUES (1, '2020-01-01 00:00:00')")
    connection.execute("SHOW SCHEDULES")
    assert connection.in_transaction
    connection.rollback()
    assert names(url) == []
    connection.execute(TABLE)
    connection.commit()
    assert "t" in names(url)
    assert policies(url) == ["t"]
    connection.execute("ALTER TABLE t RESET (ttl)")
    connection.rollback()
    assert policies(url) == ["t"]


def test_a_refused_statement_leaves_the_transaction_as_it_was(connection: lapse.Connection, url: str) -> None:
    connection.execute("CREATE TABLE kept (a)")
    with pytest.raises(lapse.ProgrammingError, match="nope"):
        connection.execute("CREATE TABLE t (a TEXT) TTL = nope + INTERVAL 1 DAY")
    connection.commit()
    assert names(url) == ["kept"]


def test_close_rolls_back(url: str) -> None:
    connection = lapse.connect(url)
    connection.execute("CREATE TABLE t (a)")
    connection.close()
    connection.close()
    assert names(url) == []


def test_context_manager_commits_or_rolls_back(url: str) -> None:
    with lapse.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a)")
    assert names(url) == ["t"]
    with pytest.raises(RuntimeError), lapse.connect(url) as connection:
        connection.execute("CREATE TABLE u (a)")
        raise RuntimeError
    assert names(url) == ["t"]


def test_autocommit(url: str) -> None:
    with closing(lapse.connect(url, autocommit=True)) as connection:
        connection.execute(TABLE)
        connection.execute("INSERT INTO t VALUES (1, NULL)")
        assert not connection.in_transaction
        assert policies(url) == ["t"]
        connection.autocommit = False
        connection.execute("DELETE FROM t")
        with pytest.raises(lapse.ProgrammingError, match="inside a transaction"):
            connection.autocommit = True
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (1,)
        connection.rollback()
        connection.autocommit = True
        assert connection.autocommit


def test_explicit_transactions_in_autocommit(url: str) -> None:
    with closing(lapse.connect(url, autocommit=True)) as connection:
        connection.execute("BEGIN")
        connection.execute(TABLE)
        connection.execute("ROLLBACK")
        assert names(url) == []


def test_rows_of_ttl_statements(connection: lapse.Connection) -> None:
    connection.execute(TABLE)
    cursor = connection.execute("SHOW CREATE TABLE t")
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["table_name", "create_statement"]
    assert cursor.rowcount == 1
    row = cursor.fetchone()
    assert row is not None
    assert "ttl_expiration_expression" in row[1]
    assert cursor.fetchone() is None
    labels = connection.execute("SELECT label FROM [SHOW SCHEDULES] WHERE label LIKE ?", ("row-level%",))
    assert labels.fetchmany(5) == [("row-level-ttl-t",)]
    assert connection.execute("SHOW JOBS").fetchall() == []
    assert cursor.execute("ALTER TABLE t SET (ttl_pause = 'on')").description is None
    with pytest.raises(lapse.ProgrammingError):
        cursor.fetchone()


def test_notices(connection: lapse.Connection) -> None:
    connection.execute(TABLE)
    assert connection.notices == []
    connection.execute("ALTER TABLE t SET (ttl_range_concurrency = 3)")
    assert [notice.split()[0] for notice in connection.notices] == ["ttl_range_concurrency"]


def test_what_a_ttl_statement_does_not_take(connection: lapse.Connection) -> None:
    connection.execute(TABLE)
    with pytest.raises(lapse.ProgrammingError, match="parameters"):
        connection.execute("ALTER TABLE t SET (ttl_pause = 'on')", ("x",))
    connection.execute("ALTER TABLE t SET (ttl_pause = 'on')", ())
    with pytest.raises(lapse.NotSupportedError):
        connection.cursor().executemany("ALTER TABLE t SET (ttl_pause = 'on')", [()])
    with pytest.raises(lapse.ProgrammingError, match="one statement"):
        connection.execute("ALTER TABLE t SET (ttl_pause = 'on'); SELECT 1")


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELEC 1", lapse.OperationalError),
        ("SELECT 1; SELECT 2", lapse.DatabaseError),
        ("INSERT INTO t VALUES (1, NULL)", lapse.IntegrityError),
        ("ALTER TABLE t SET (ttl_expire_after = '30')", lapse.ProgrammingError),
        ("ALTER TABLE missing SET (ttl_expire_after = '1 day')", lapse.ProgrammingError),
        ("ALTER TABLE t DROP COLUMN at", lapse.ProgrammingError),
        ("CREATE TEMP TABLE x (a TEXT) WITH (ttl_expire_after = '1 day')", lapse.NotSupportedError),
        ("ALTER TABLE missing ADD COLUMN b", lapse.OperationalError),
    ],
)
def test_errors(connection: lapse.Connection, statement: str, kind: type[Exception]) -> None:
    connection.execute(TABLE)
    connection.execute("INSERT INTO t VALUES (1, NULL)")
    with pytest.raises(kind) as raised:
        connection.execute(statement)
    assert raised.value.__cause__ is not None


def test_errors_carry_the_hint(connection: lapse.Connection) -> None:
    connection.execute(TABLE)
    with pytest.raises(lapse.ProgrammingError) as raised:
        connection.execute("ALTER TABLE t DROP COLUMN at")
    assert "RESET (ttl)" in (raised.value.hint or "")


def test_connecting_to_what_is_not_there() -> None:
    with pytest.raises(lapse.ProgrammingError):
        lapse.connect("nosuch://host/db")
    with pytest.raises(lapse.OperationalError):
        lapse.connect("sqlite:////no/such/directory/app.db")


def test_closed_things_refuse(connection: lapse.Connection) -> None:
    cursor = connection.cursor()
    cursor.close()
    with pytest.raises(lapse.InterfaceError, match="cursor"):
        cursor.execute("SELECT 1")
    other = connection.cursor()
    connection.close()
    for call in (connection.commit, connection.rollback, connection.cursor, lambda: other.execute("SELECT 1")):
        with pytest.raises(lapse.InterfaceError, match="connection"):
            call()


def test_the_clock_is_passed_in(url: str) -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    with lapse.connect(url, clock=clock) as connection:
        connection.execute(TABLE)
        connection.execute("INSERT INTO t VALUES (1, '2030-01-01 12:00:00')")
    with lapse.open(url, clock=clock) as db:
        assert db.run("t").deleted == 0
        clock.advance(timedelta(days=1))
        assert db.run("t").deleted == 1
