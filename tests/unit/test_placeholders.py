"""Parameters as every engine reads them, written for sqlite3; a statement without them is never touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import lapse
from lapse.dbapi.placeholders import for_sqlite


@pytest.fixture
def connection() -> Iterator[lapse.Connection]:
    with closing(lapse.connect("sqlite://")) as connection:
        connection.execute("CREATE TABLE t (a, s)")
        connection.execute("INSERT INTO t VALUES (7, 4), (8, 5)")
        yield connection


@pytest.mark.parametrize(
    ("text", "parameters", "rows"),
    [
        ("SELECT %s, %s", (1, "x"), [(1, "x")]),
        ("SELECT %(b)s, %(a)s, %(b)s", {"a": 1, "b": 2}, [(2, 1, 2)]),
        ("SELECT %(it's odd)s", {"it's odd": 1}, [(1,)]),
        ("SELECT '100%%', %s", (1,), [("100%", 1)]),
        ("SELECT 7 %% %s", (4,), [(3,)]),
        ("SELECT a %s FROM t ORDER BY 1", None, [(3,), (3,)]),
        ("SELECT a %s FROM t ORDER BY 1", (), [(3,), (3,)]),
        ("SELECT a %s FROM t WHERE a = ?", (7,), [(3,)]),
        ("SELECT a %s, '%(x)s' FROM t WHERE a = :a", {"a": 7}, [(3, "%(x)s")]),
        ("SELECT '50%' LIKE ?", ("5%",), [(1,)]),
        ("SELECT '50%'", None, [("50%",)]),
        ("SELECT ?1 + ?1 % 2", (3,), [(4,)]),
        ("SELECT '?' || %s", ("!",), [("?!",)]),
    ],
)
def test_parameters(connection: lapse.Connection, text: str, parameters: Any, rows: list[Any]) -> None:
    assert connection.execute(text, parameters).fetchall() == rows


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("SELECT '%s'", (1,)),
        ("SELECT %s -- %s", (1, 2)),
        ("SELECT 5 % 2, %s", (1,)),
        ("SELECT %s, %(a)s", {"a": 1}),
        ("SELECT %(a)s", {"b": 1}),
        ("SELECT %(a)s", (1,)),
        ("SELECT %s", (1, 2)),
        ("SELECT 1", (1,)),
    ],
)
def test_mistakes(connection: lapse.Connection, text: str, parameters: Any) -> None:
    with pytest.raises(lapse.ProgrammingError):
        connection.execute(text, parameters)


def test_many(connection: lapse.Connection) -> None:
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO t VALUES (%(a)s, '%%')", ({"a": number} for number in (1, 2)))
    cursor.executemany("INSERT INTO t VALUES (?, '%')", iter([(3,), (4,)]))
    cursor.executemany("INSERT INTO t VALUES (5, '%')", [(), ()])
    cursor.executemany("INSERT INTO t VALUES (%s, 6)", [])
    rows = connection.execute("SELECT a FROM t WHERE s = '%' ORDER BY a").fetchall()
    assert rows == [(1,), (2,), (3,), (4,), (5,), (5,)]


def test_the_catalog_can_be_asked_with_parameters(connection: lapse.Connection) -> None:
    connection.execute("CREATE TABLE u (at TEXT) TTL = at + INTERVAL 1 DAY")
    found = connection.execute("SELECT label FROM [SHOW SCHEDULES] WHERE label LIKE %s", ("row%",))
    assert found.fetchall() == [("row-level-ttl-u",)]


def test_a_statement_with_the_drivers_own_marks_is_the_same_object() -> None:
    text = "SELECT a % 2 FROM t WHERE b = ?"
    assert for_sqlite(text).text is text
