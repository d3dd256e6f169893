"""Comments that declare policies: obeyed where they are trusted, proposals elsewhere, never guessed.

SQLite's tables have no comments: the tests say what the engine reads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.app import Lapse
from lapse.catalog import meta, policies
from lapse.clock import ManualClock
from lapse.engines.base import TableComment
from lapse.errors import DatabaseError, DatabaseUnavailable, NotFound
from lapse.model.policy import PolicyChange
from lapse.model.table import TableName
from lapse.runner import comments as module
from lapse.runner.comments import BACKOFF_SECONDS, READ_SECONDS, CommentReader
from lapse.runner.policy_manager import PolicyManager
from tests.unit.runner.build import NOW

EVENTS = TableName("events")
DAY = "ttl_duration=86400;ttl_col=at;"
WEEK = "ttl_duration=604800;ttl_col=at;"


class Desk:
    """The comments of a database, as a test writes them."""

    def __init__(self, database: Lapse, patch: pytest.MonkeyPatch) -> None:
        self.database = database
        self.comments: list[TableComment] = []
        self.passed = 1000.0
        self.reads = 0
        engine = database.engine
        patch.setattr(engine, "features", replace(engine.features, table_comments=True))
        patch.setattr(engine, "comments", self._read)
        patch.setattr(module, "monotonic", lambda: self.passed)

    def _read(self, connection: object) -> list[TableComment]:
        self.reads += 1
        return self.comments

    def write(self, text: str, *, table: TableName = EVENTS, is_own: bool = True, **fields: Any) -> None:
        others = [comment for comment in self.comments if comment.table != table]
        self.comments = [*others, TableComment(table=table, text=text, is_own=is_own, **fields)]

    def policies(self) -> dict[str, str]:
        return {str(stored.table): str(stored.policy.interval) for stored in self.database.policies()}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with Lapse(f"sqlite:///{tmp_path / 'app.db'}", clock=ManualClock(NOW)) as database:
        for name in ("events", "logs"):
            database.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, at TEXT)")
        database.catalog.install()
        yield Desk(database, monkeypatch)


@pytest.fixture
def reader(desk: Desk) -> CommentReader:
    return CommentReader(desk.database.catalog)


def test_a_comment_on_one_s_own_table_is_obeyed(desk: Desk, reader: CommentReader) -> None:
    desk.write(DAY)
    assert reader.run_once() == ()
    (stored,) = desk.database.policies()
    assert (stored.source, stored.source_text) == (policies.COMMENT, DAY)
    assert desk.policies() == {"events": "1 day"}


def test_a_comment_that_is_not_about_ttl_is_none_of_ours(desk: Desk, reader: CommentReader) -> None:
    desk.write("rows of the shop; see the wiki")
    assert reader.run_once() == ()
    assert desk.policies() == {}


def test_a_comment_of_another_owner_is_a_proposal(desk: Desk, reader: CommentReader) -> None:
    desk.write(DAY, is_own=False, owner="bob")
    (problem,) = reader.run_once()
    assert (problem.proposal, problem.untrusted, problem.fix) == (True, True, "lapse accept URL events")
    assert problem.reason == "its comment proposes a policy, and comments on tables of bob are not obeyed"
    assert desk.policies() == {}


def test_an_owner_whom_a_setting_trusts_is_obeyed(desk: Desk, reader: CommentReader) -> None:
    desk.write(DAY, is_own=False, owner="bob")
    desk.database.set_setting("lapse_trusted_owners", "alice, bob")
    assert reader.run_once() == ()
    assert desk.policies() == {"events": "1 day"}


def test_another_comment_changes_the_policy(desk: Desk, reader: CommentReader) -> None:
    desk.write(DAY)
    reader.run_once()
    desk.write(WEEK)
    assert reader.run_once() == ()
    assert desk.policies() == {"events": "7 days"}


def test_the_same_in_other_words_changes_nothing(desk: Desk, reader: CommentReader) -> None:
    desk.write(DAY)
    reader.run_once()
    (before,) = desk.database.policies()
    desk.write("ttl_col=at;ttl_duration=86400;")
    assert reader.run_once() == ()
    assert desk.database.policies() == [before]


def test_a_policy_of_a_statement_wins_over_a_comment(desk: Desk, reader: CommentReader) -> None:
    desk.database.execute("ALTER TABLE events TTL = `at` + INTERVAL 7 DAY")
    desk.write(DAY)
    assert reader.run_once() == ()
    assert desk.policies() == {"events": "7 days"}


def test_a_policy_goes_with_its_comment(desk: Desk, reader: CommentReader) -> None:
    desk.write(DAY)
    reader.run_once()
    desk.comments = []
    assert reader.run_once() == ()
    assert desk.policies() == {}


def test_a_comment_that_is_taken_over_by_another_owner_stops_its_table(desk: Desk, reader: CommentReader) -> None:
    desk.write(DAY)
    reader.run_once()
    desk.write(WEEK, is_own=False, owner="bob")
    (problem,) = reader.run_once()
    assert problem.stored is not None
    assert problem.reason == "its comment says something else than the one that was accepted"
    assert desk.policies() == {"events": "1 day"}


def test_a_comment_that_was_rejected_is_not_followed_until_it_changes(desk: Desk, reader: CommentReader) -> None:
    with desk.database.catalog.writing() as connection:
        meta.reject_comment(connection, EVENTS, DAY)
    desk.write(DAY)
    assert reader.run_once() == ()
    assert desk.policies() == {}
    desk.write(WEEK)
    reader.run_once()
    assert desk.policies() == {"events": "7 days"}


def test_a_mistake_is_reported_once_and_stops_no_other_table(
    desk: Desk, reader: CommentReader, caplog: pytest.LogCaptureFixture
) -> None:
    desk.write("ttl_duration=soon;ttl_col=at;")
    desk.write(DAY, table=TableName("logs"))
    with caplog.at_level(logging.WARNING):
        (problem,) = reader.run_once()
        reader.run_once()
    assert (problem.table, problem.proposal, problem.fix) == (EVENTS, False, None)
    assert problem.reason.startswith("its comment: ")
    assert len([record for record in caplog.records if "events" in record.getMessage()]) == 1
    assert desk.policies() == {"logs": "1 day"}


def test_a_comment_that_cannot_be_followed_is_tried_again_later_and_later(
    desk: Desk, reader: CommentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def refuse(self: PolicyManager, connection: object, name: TableName, change: PolicyChange) -> None:
        tries.append(str(name))
        raise DatabaseError("permission denied")

    monkeypatch.setattr(PolicyManager, "change", refuse)
    desk.write(DAY)
    for passed in (0.0, BACKOFF_SECONDS - 1, 1.0, BACKOFF_SECONDS, BACKOFF_SECONDS):
        desk.passed += passed
        (problem,) = reader.run_once()
        assert problem.reason == "its comment: permission denied"
    # At once, after one pause, and after one that is twice as long.
    assert len(tries) == 3


def test_another_text_is_tried_at_once(desk: Desk, reader: CommentReader) -> None:
    desk.write("ttl_duration=86400;ttl_col=gone;")
    (problem,) = reader.run_once()
    assert "gone" in problem.reason
    desk.write(DAY)
    assert reader.run_once() == ()


def test_comments_are_read_once_in_a_while(desk: Desk, reader: CommentReader) -> None:
    reader.refresh()
    desk.passed += READ_SECONDS - 1
    reader.refresh()
    assert desk.reads == 1
    desk.passed += 1
    reader.refresh()
    assert desk.reads == 2


def test_a_database_that_is_unreachable_is_raised_and_any_other_error_is_not(
    desk: Desk, reader: CommentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.write(DAY, is_own=False)
    known = reader.run_once()
    errors: list[Exception] = [DatabaseError("syntax error"), DatabaseUnavailable("gone")]

    def fail(connection: object) -> list[TableComment]:
        raise errors.pop(0)

    monkeypatch.setattr(desk.database.engine, "comments", fail)
    assert reader.run_once() == known
    with pytest.raises(DatabaseUnavailable):
        reader.run_once()


def test_looking_changes_nothing(desk: Desk, reader: CommentReader) -> None:
    desk.write(DAY)
    with desk.database.engine.connection() as connection:
        look = reader.look(connection)
    assert [wanted.comment.text for wanted in look.wanted] == [DAY]
    assert desk.policies() == {}


def test_the_comment_of_one_table(desk: Desk, reader: CommentReader) -> None:
    desk.write(DAY)
    desk.write("for the shop", table=TableName("logs"))
    with desk.database.engine.connection() as connection:
        comment, fields = reader.find(connection, EVENTS)
        assert (comment.text, fields["column"]) == (DAY, "at")
        with pytest.raises(NotFound, match="the comment of table logs proposes no policy"):
            reader.find(connection, TableName("logs"))


def test_an_engine_without_comments_is_not_asked(
    desk: Desk, reader: CommentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = desk.database.engine
    monkeypatch.setattr(engine, "features", replace(engine.features, table_comments=False))
    desk.write(DAY)
    assert (reader.run_once(), desk.reads) == ((), 0)
