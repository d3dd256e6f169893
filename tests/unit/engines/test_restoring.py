"""Reading an archive table and putting its rows back, on a SQLite in memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine

from lapse.engines.archive import ArchiveShape, added, changed, missing, refuse_foreign
from lapse.engines.restoring import ArchiveTable, Dialect, Oldest
from lapse.errors import PolicyConflict
from lapse.model.archive import OWN_COLUMNS
from lapse.model.table import Column, FkAction, Index, Reference, Table, TableKind, TableName

EVENTS, OLD = TableName("events"), TableName("events_archive")
SQLITE = Dialect(
    quote=lambda name: f'"{name}"',
    relation=lambda name: f'"{name.name}"',
    instant=lambda moment: f"'{moment.strftime('%Y-%m-%d %H:%M:%S')}'",
    is_duplicate=lambda error: "UNIQUE" in str(error),
)
ROWS = ((1, "a", "2026-01-01 00:00:00", 7), (2, None, "2026-01-02 00:00:00", 7), (3, "c", "2026-01-03 00:00:00", 8))


def table(**fields: Any) -> Table:
    columns = (Column(name="id", type="INTEGER"), Column(name="body", type="TEXT"))
    values: dict[str, Any] = {"name": EVENTS, "kind": TableKind.TABLE, "columns": columns, "primary_key": ("id",)}
    return Table(**values | fields)


@pytest.fixture
def connection() -> Iterator[Connection]:
    with create_engine("sqlite://").connect() as opened:
        for statement in (
            "CREATE TABLE events (id INTEGER PRIMARY KEY, body TEXT UNIQUE)",
            "CREATE TABLE events_archive (id INTEGER, body TEXT, archived_at TEXT, lapse_job INTEGER,"
            " lapse_seq INTEGER PRIMARY KEY)",
        ):
            opened.exec_driver_sql(statement)
        opened.exec_driver_sql(
            "INSERT INTO events_archive (id, body, archived_at, lapse_job) VALUES (?, ?, ?, ?)", list(ROWS)
        )
        yield opened


@pytest.fixture
def old() -> ArchiveTable:
    return ArchiveTable(SQLITE, OLD)


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def test_what_there_is_by_job(connection: Connection, old: ArchiveTable) -> None:
    first, second = old.by_job(connection)
    assert (first.job, first.rows, first.first, first.last) == (7, 2, day(1), day(2))
    assert (second.job, second.rows) == (8, 1)
    assert old.oldest(connection) == Oldest(job=7)
    assert old.waiting(connection) == 3


def test_packs_count_for_their_rows_and_are_none_of_these(connection: Connection, old: ArchiveTable) -> None:
    connection.exec_driver_sql("ALTER TABLE events_archive ADD COLUMN lapse_rows INTEGER")
    connection.exec_driver_sql("ALTER TABLE events_archive ADD COLUMN lapse_pack BLOB")
    connection.exec_driver_sql(
        "INSERT INTO events_archive (lapse_seq, archived_at, lapse_job, lapse_rows, lapse_pack)"
        " VALUES (-1, '2026-01-04 00:00:00', 8, 500, x'00'), (4, '2026-01-05 00:00:00', 9, 20, x'00')"
    )
    packed = ArchiveTable(SQLITE, OLD, has_packs=True)
    assert [(each.job, each.rows) for each in packed.by_job(connection)] == [(7, 2), (8, 501), (9, 20)]
    # By their numbers there may be one row more, whose number is 0.
    assert packed.waiting(connection) == 3 + 500 + 20 + 1
    assert packed.oldest(connection) == Oldest(job=8, is_pack=True)
    assert packed.packs(connection, ()) == [-1, 4]
    assert packed.packs(connection, packed.chosen(job=9, since=None, until=None, where=None)) == [4]
    assert packed.count(connection, ()) == 3
    assert packed.page(connection, (), -10, 10) == [(1, 7), (2, 7), (3, 8)]
    assert packed.span(connection, (), "id") == (1, 3)
    assert old.packs(connection, ()) == []


def test_an_empty_archive(connection: Connection, old: ArchiveTable) -> None:
    connection.exec_driver_sql("DELETE FROM events_archive")
    assert old.by_job(connection) == []
    assert (old.oldest(connection), old.waiting(connection)) == (None, 0)
    assert old.existing(connection, [], table()) == set()


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        ({}, [1, 2, 3]),
        ({"job": 7}, [1, 2]),
        ({"since": day(2)}, [2, 3]),
        ({"until": day(2)}, [1]),
        ({"where": "body IS NULL OR body = 'c'"}, [2, 3]),
        ({"job": 7, "where": "body IS NULL OR body = 'c'"}, [2]),
    ],
)
def test_the_rows_that_are_meant(
    connection: Connection, old: ArchiveTable, chosen: dict[str, Any], numbers: list[int]
) -> None:
    terms = old.chosen(**{"job": None, "since": None, "until": None, "where": None} | chosen)
    assert old.count(connection, terms) == len(numbers)
    assert [number for number, _ in old.page(connection, terms, 0, 10)] == numbers


def test_pages_go_on_where_they_ended(connection: Connection, old: ArchiveTable) -> None:
    assert old.page(connection, (), 0, 2) == [(1, 7), (2, 7)]
    assert old.page(connection, (), 2, 2) == [(3, 8)]
    assert old.page(connection, (), 3, 2) == []


def test_a_page_goes_back_and_leaves_the_archive(connection: Connection, old: ArchiveTable) -> None:
    assert old.put_back(connection, [2, 1], EVENTS, ["id", "body"]) == 2
    assert old.remove(connection, [1, 2]) == 2
    assert connection.exec_driver_sql("SELECT id, body FROM events").all() == [(1, "a"), (2, None)]
    assert old.waiting(connection) == 1


def test_rows_that_are_there_again_by_any_unique_key(connection: Connection, old: ArchiveTable) -> None:
    connection.exec_driver_sql("INSERT INTO events VALUES (1, 'x'), (9, 'c')")
    body = Index(name="u", columns=("body",), unique=True)
    assert old.existing(connection, [1, 2, 3], table()) == {1}
    assert old.existing(connection, [1, 2, 3], table(indexes=(body,))) == {1, 3}
    some = Index(name="u", columns=("body",), unique=True, partial=True)
    assert old.existing(connection, [1, 2, 3], table(indexes=(some,))) == {1}
    assert old.existing(connection, [1, 2, 3], table(primary_key=())) == set()


def test_rows_by_what_they_lack(connection: Connection, old: ArchiveTable) -> None:
    assert old.without(connection, [1, 2, 3], ["body"]) == {(): [1, 3], ("body",): [2]}


def test_ranges_are_removed_in_statements_of_bounded_size(connection: Connection, old: ArchiveTable) -> None:
    apart = [(number, number) for number in range(3, 903)]
    assert old.remove_ranges(connection, [(1, 2), *apart]) == 3
    assert old.waiting(connection) == 0


# Shapes: does what is there under the archive's name take the rows?

ARCHIVE = ArchiveShape(columns={"id": "int", "Body": "text"}, own=frozenset(OWN_COLUMNS))


def test_columns_that_were_added_or_changed() -> None:
    assert added({"ID": "int", "body": "text", "more": "int"}, ARCHIVE) == {"more": "int"}
    assert changed({"id": "bigint", "body": "text"}, ARCHIVE) == [
        "column id is bigint in the table and int in the archive"
    ]
    exact = ArchiveShape(columns={"Body": "text"}, own=frozenset(OWN_COLUMNS), folds=False)
    assert added({"body": "text"}, exact) == {"body": "text"}


def test_what_is_there_under_its_name() -> None:
    source = {"id": "int", "body": "text"}
    refuse_foreign(OLD, EVENTS, source, None)
    refuse_foreign(OLD, EVENTS, source, ARCHIVE)
    with pytest.raises(PolicyConflict, match="not an archive of Lapse's"):
        refuse_foreign(OLD, EVENTS, source, ArchiveShape(columns=source))
    with pytest.raises(PolicyConflict, match="bigint in the table"):
        refuse_foreign(OLD, EVENTS, source | {"id": "bigint"}, ARCHIVE)
    flawed = ArchiveShape(columns=source, own=frozenset(OWN_COLUMNS), flaws=("trigger t",))
    with pytest.raises(PolicyConflict, match="trigger t"):
        refuse_foreign(OLD, EVENTS, source, flawed)


def test_what_keeps_it_from_taking_rows() -> None:
    source = {"id": "int", "body": "text"}
    assert missing(table(), OLD, source, ARCHIVE) == []
    assert missing(table(), OLD, source, None) == ["archive table events_archive"]
    assert missing(table(), OLD, source | {"more": "int"}, ARCHIVE) == ["column more of archive table events_archive"]
    (half,) = missing(table(), OLD, source, ArchiveShape(columns=source, own=frozenset(OWN_COLUMNS[1:])))
    assert OWN_COLUMNS[0] in half
    child = Reference(
        table=TableName("items"), columns=("event",), referred=("id",), action=FkAction.CASCADE, indexed=True
    )
    (told,) = missing(table(referenced_by=(child,)), OLD, source, ARCHIVE)
    assert "deletes rows of table items" in told
