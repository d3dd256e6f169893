"""`ttl_archive` as text, and what a batch that moves rows is made of."""

from __future__ import annotations

import pytest

from lapse.engines.action import Move, Rows, moved
from lapse.errors import InvalidValue, PolicyConflict, Retryable
from lapse.model.archive import archive_table, complete, read
from lapse.model.interval import parse
from lapse.model.policy import Policy
from lapse.model.table import TableName

EVENTS = TableName("events", "app")


@pytest.mark.parametrize(
    ("text", "name", "written"),
    [
        ("table:", TableName("events_archive", "app"), "table:app.events_archive"),
        ("table:old", TableName("old", "app"), "table:app.old"),
        ("table:vault.old", TableName("old", "vault"), "table:vault.old"),
        ('table:"a.b"."c ""d"""', TableName('c "d"', "a.b"), 'table:"a.b"."c ""d"""'),
        ("file:///srv/old", TableName("events_outbox", "app"), "file:///srv/old#app.events_outbox"),
        ("s3://bucket/a#b.c", TableName("c", "b"), "s3://bucket/a#b.c"),
        ("gs://bucket", TableName("events_outbox", "app"), "gs://bucket#app.events_outbox"),
    ],
)
def test_a_destination_is_read_and_written(text: str, name: TableName, written: str) -> None:
    assert read(f" {text} ", "ttl_archive") == text
    assert archive_table(text, EVENTS) == name
    assert complete(text, EVENTS) == written == complete(written, TableName("renamed", "elsewhere"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "events", "table:a.b.c", "table:a b", 'table:"a', "TABLE:x", "file://", "file:///", "file:///a/../b"),
        *("file://host/a", "s3://", "s3:///x", "s3://b/./x", "s3://b#a.b.c", "https://h/x", "s3://b/a b"),
        *("s3://b/p?region=eu", "s3://K:S@b/p"),
    ],
)
def test_other_destinations_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        read(text, "ttl_archive")


def test_keeping_what_is_not_archived_is_refused() -> None:
    with pytest.raises(PolicyConflict, match="ttl_archive is not set"):
        Policy(expire_after=parse("1 day"), archive_keep=parse("1 day"))


def test_rows_are_copied_with_the_limit_and_deleted_without() -> None:
    """The second statement may find more rows than the first, never fewer: equal numbers are equal rows."""
    rows = Rows(table="t", condition="(c)", bound="id > 5", extra="free", suffix=" LIMIT 9")
    move = Move(archive="a", columns=("id", "ts"), now="now()", job=7, lock=" FOR UPDATE")
    copy, delete = move.statements(rows)
    assert copy == (
        "INSERT INTO a (id, ts, archived_at, lapse_job) SELECT id, ts, now(), 7 FROM t"
        " WHERE id > 5 AND (c) AND free LIMIT 9 FOR UPDATE"
    )
    assert delete == "DELETE FROM t WHERE id > 5 AND (c) AND free"


def test_numbers_that_differ_undo_the_batch() -> None:
    assert moved([5]) == moved([5, 5]) == 5
    for counts in ([5, 6], [6, 5], [0, 1]):
        with pytest.raises(Retryable, match="undone"):
            moved(counts)
