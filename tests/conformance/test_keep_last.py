"""`ttl_keep_last`: the last rows of a group never expire, whatever other sessions do to the group at the same time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from lapse.app.records import expiry_words
from lapse.errors import InvalidValue, LapseError, Unsupported
from lapse.model.job import JobStatus, PathKind
from tests.conformance.harness import Harness

KEEP = "ttl_keep_last = '2 BY (account) ORDER BY ts'"
INDEX = "CREATE INDEX events_last ON events (account, ts, id)"


def _events(h: Harness, *, keep: str = KEEP, more: str = "", index: str = INDEX, ttl: str = "") -> None:
    h.events(extra=f", account {h.backend.bigint}", ttl=ttl or "TTL = ts + INTERVAL 1 DAY")
    h.sql(index)
    h.sql(f"ALTER TABLE events SET ({keep}{more})")


def _insert(h: Harness, *rows: tuple[int, int | None, str]) -> None:
    values = ", ".join(f"({i}, {'NULL' if account is None else account}, {ts})" for i, account, ts in rows)
    h.sql(f"INSERT INTO events (id, account, ts) VALUES {values}")


@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize("index", [False, True])
def test_the_last_rows_of_each_group_stay(h: Harness, batch: int, index: bool) -> None:
    _events(h, more=f", ttl_delete_batch_size = {batch}, ttl_adaptive = 'off'")
    if index:
        h.sql("CREATE INDEX events_ts ON events (ts)")
    # Account 1 has only old rows, 2 as many as are kept, 3 one row that lives, 4 lives by three rows.
    _insert(h, *((i, 1, h.at(days=-2, minutes=i)) for i in range(1, 11)))
    _insert(h, (11, 2, h.at(days=-9)), (12, 2, h.at(days=-8)))
    _insert(h, (13, 3, h.at(days=-9)), (14, 3, h.at(days=-8)), (15, 3, h.at()))
    _insert(h, (16, 4, h.at(days=-9)), (17, 4, h.at()), (18, 4, h.at()), (19, 4, h.at()))
    job = h.run_one()
    assert h.ids() == [9, 10, 11, 12, 14, 15, 17, 18, 19]
    assert (job.status, job.counts.deleted, job.counts.held) == (JobStatus.FINISHED, 10, 0)
    assert job.path.kind is (PathKind.INDEX if index else PathKind.PHYSICAL)
    assert h.run_one().counts.deleted == 0


def test_without_groups_the_last_rows_of_the_table_stay(h: Harness) -> None:
    _events(h, keep="ttl_keep_last = '3 ORDER BY ts'", index="CREATE INDEX events_last ON events (ts, id)")
    _insert(h, *((i, i, h.at(days=-2, minutes=-i)) for i in range(1, 11)))
    h.run_one()
    assert h.ids() == [1, 2, 3]


def test_the_key_tells_rows_of_one_time_apart(h: Harness) -> None:
    _events(h)
    _insert(h, *((i, 1, h.at(days=-2)) for i in (5, 3, 9, 1, 7)))
    h.run_one()
    assert h.ids() == [7, 9]


def test_a_row_that_cannot_be_compared_stays_and_does_not_count(h: Harness) -> None:
    ttl = "TTL = old + INTERVAL 1 DAY"
    h.sql(
        f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, account {h.backend.bigint}, ts {h.backend.instant},"
        f" old {h.backend.instant}) {ttl}"
    )
    h.sql(INDEX)
    h.sql(f"ALTER TABLE events SET ({KEEP})")
    old, times = h.at(days=-9), [h.at(days=-9, minutes=i) for i in range(9)]
    rows = [f"({i}, 1, {times[i]}, {old})" for i in range(4)]
    rows += [f"({i}, 1, NULL, {old})" for i in range(4, 7)] + [
        f"({i}, NULL, {times[i - 7]}, {old})" for i in range(7, 12)
    ]
    h.sql(f"INSERT INTO events (id, account, ts, old) VALUES {', '.join(rows)}")
    h.run_one()
    assert h.ids() == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def test_everything_that_looks_at_rows_knows_it(h: Harness) -> None:
    _events(h, more=", ttl_hide_expired = 'view'")
    _insert(h, *((i, i % 2, "'2020-01-01 00:00:00'") for i in range(1, 9)))
    (preview,) = h.db.preview("events", exact=True)
    assert preview.survey.expired == 4
    assert {row["id"] for row in preview.sample} <= {1, 2, 3, 4}
    assert expiry_words(preview.policy) == "1 day after ts, but for the last 2 BY (account) ORDER BY ts"
    assert h.ids("events_live") == [5, 6, 7, 8]
    assert "ttl_keep_last = '2 BY (account) ORDER BY ts'" in h.rows("SHOW CREATE TABLE events")[0][1]


def test_it_goes_with_a_filter_and_with_holds(h: Harness) -> None:
    _events(h, more=", ttl_filter = 'id <> 2'")
    _insert(h, *((i, 1, h.at(days=-2, minutes=i)) for i in range(1, 8)))
    h.owner.hold("events", "id = 3")
    h.run_one()
    # Rows that stay for another reason count among the last ones all the same.
    assert h.ids() == [2, 3, 6, 7]


def test_a_group_and_a_key_of_several_columns(h: Harness) -> None:
    big, text = h.backend.bigint, h.backend.key_text
    h.sql(
        f"CREATE TABLE events (tenant {big} NOT NULL, id {big} NOT NULL, kind {text}, ts {h.backend.instant},"
        " PRIMARY KEY (tenant, id)) TTL = ts + INTERVAL 1 DAY"
    )
    h.sql("CREATE INDEX events_last ON events (kind, tenant, ts, id)")
    h.sql("ALTER TABLE events SET (ttl_keep_last = '1 BY (tenant, kind) ORDER BY ts')")
    rows = [f"({i % 2}, {i}, '{'ab'[i // 2 % 2]}', {h.at(days=-2)})" for i in range(12)]
    h.sql(f"INSERT INTO events (tenant, id, kind, ts) VALUES {', '.join(rows)}")
    h.run_one()
    assert h.ids() == [8, 9, 10, 11]


def test_names_that_need_quotes(h: Harness) -> None:
    by, order = h.q('the "Account"'), h.q("lapse_last_0")
    h.sql(
        f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, {by} {h.backend.bigint}, {order} {h.backend.bigint},"
        f" ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY"
    )
    h.sql(f"CREATE INDEX events_last ON events ({by}, {order}, id)")
    keep = '1 BY ("the ""Account""") ORDER BY lapse_last_0'
    h.sql(f"ALTER TABLE events SET (ttl_keep_last = '{keep}')")
    rows = [f"({i}, {i % 2}, {9 - i}, {h.at(days=-2)})" for i in range(8)]
    h.sql(f"INSERT INTO events VALUES {', '.join(rows)}")
    h.run_one()
    assert h.ids() == [0, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have the form"),
        ("BY (account) ORDER BY ts", "must have the form"),
        ("0 BY (account) ORDER BY ts", "must have the form"),
        ("1001 ORDER BY ts", "must have the form"),
        ("2 BY (account)", "must have the form"),
        ("2 BY account ORDER BY ts", "must have the form"),
        ("2 BY () ORDER BY ts", "must have the form"),
        ("2 BY (account) ORDER BY ts, id", "must have the form"),
        ("2 BY (account) ORDER BY ts; DROP TABLE events", "must have the form"),
        ("2 BY (account) ORDER BY ts DESC", "ASC or DESC"),
        ("2 BY (account, Account) ORDER BY ts", "twice"),
        ("2 BY (account) ORDER BY account", "twice"),
    ],
)
def test_what_is_no_keep_last_is_refused(h: Harness, text: str, words: str) -> None:
    _events(h)
    with pytest.raises(InvalidValue, match=words):
        h.sql(f"ALTER TABLE events SET (ttl_keep_last = '{text}')")
    assert str(h.db.policies()[0].policy.keep_last) == "2 BY (account) ORDER BY ts"


def test_a_column_that_is_mistyped_is_refused(h: Harness) -> None:
    _events(h)
    with pytest.raises(LapseError, match="acount"):
        h.sql("ALTER TABLE events SET (ttl_keep_last = '2 BY (acount) ORDER BY ts')")


def test_without_its_index_it_is_refused_and_the_hint_makes_one(h: Harness) -> None:
    h.events(extra=f", account {h.backend.bigint}")
    h.sql("CREATE INDEX other ON events (account, id)")
    with pytest.raises(Unsupported, match="no index") as refused:
        h.sql(f"ALTER TABLE events SET ({KEEP})")
    assert h.db.policies()[0].policy.keep_last is None
    with h.client() as connection:
        connection.exec_driver_sql(str(refused.value.hint))
    h.sql(f"ALTER TABLE events SET ({KEEP})")
    _insert(h, *((i, 1, h.at(days=-2, minutes=i)) for i in range(1, 6)))
    h.run_one()
    assert h.ids() == [4, 5]


def _drop_index(h: Harness, connection: Connection) -> None:
    of_table = " ON events" if h.db.engine.dialect == "mysql" else ""
    connection.exec_driver_sql(f"DROP INDEX events_last{of_table}")


def test_an_index_that_goes_later_blocks_the_table_until_there_is_one_again(h: Harness) -> None:
    _events(h)
    _insert(h, *((i, 1, h.at(days=-2, minutes=i)) for i in range(1, 6)))
    with h.client() as connection:
        _drop_index(h, connection)
    result = h.run("events")
    assert result.failed and "no index" in str(result.jobs[0].reason if result.jobs else result.failed)
    assert h.ids() == [1, 2, 3, 4, 5]
    with h.client() as connection:
        connection.exec_driver_sql(INDEX)
    h.run("events")
    assert h.ids() == [4, 5]


def test_a_column_that_it_reads_is_watched(h: Harness) -> None:
    _events(h)
    _insert(h, *((i, 1, h.at(days=-2, minutes=i)) for i in range(1, 6)))
    with h.client() as connection:
        connection.exec_driver_sql("ALTER TABLE events RENAME COLUMN account TO tenant")
        connection.exec_driver_sql(f"ALTER TABLE events ADD COLUMN account {h.backend.bigint} DEFAULT 1")
    result = h.run("events")
    assert result.failed
    assert h.ids() == [1, 2, 3, 4, 5]


@contextmanager
def _in_transaction(h: Harness) -> Iterator[Connection]:
    """Of another session, rolled back at the end."""
    if not h.features.concurrent_writers:
        pytest.skip("there is one writer at a time")
    with h.client() as connection:
        connection.exec_driver_sql("BEGIN")
        try:
            yield connection
        finally:
            connection.exec_driver_sql("ROLLBACK")


def test_a_row_that_another_session_is_about_to_delete_does_not_count(h: Harness) -> None:
    _events(h)
    _insert(h, *((i, 1, h.at(days=-2, minutes=i)) for i in range(1, 4)))
    with _in_transaction(h) as other:
        other.exec_driver_sql("DELETE FROM events WHERE id = 3")
        h.run("events")
        assert h.ids() == [1, 2, 3]
        other.exec_driver_sql("UPDATE events SET account = 9 WHERE id = 2")
        h.run("events")
        assert h.ids() == [1, 2, 3]
    h.run("events")
    assert h.ids() == [2, 3]


def test_a_row_that_is_not_committed_does_not_count(h: Harness) -> None:
    _events(h)
    _insert(h, (1, 1, h.at(days=-9)), (2, 1, h.at(days=-9)))
    with _in_transaction(h) as other:
        other.exec_driver_sql(f"INSERT INTO events (id, account, ts) VALUES (3, 1, {h.at()})")
        h.run("events")
        assert h.ids() == [1, 2]
    h.run("events")
    assert h.ids() == [1, 2]


_TIMES = st.one_of(st.none(), st.integers(0, 4))
_ROWS = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 7)), _TIMES, st.booleans()), min_size=10, max_size=60)


def _left(rows: list[tuple[int | None, int | None, bool]], last: int, *, grouped: bool) -> list[int]:
    """What has to be there after a run, by the plainest reading of the declaration."""
    stays = []
    for number, (account, at, has_expired) in enumerate(rows):
        group = [
            (other_at, other)
            for other, (other_account, other_at, _) in enumerate(rows)
            if other_at is not None and (not grouped or other_account == account)
        ]
        is_comparable = at is not None and (not grouped or account is not None)
        if not has_expired or not is_comparable or (at, number) in sorted(group, key=_newest_first)[:last]:
            stays.append(number)
    return stays


def _newest_first(row: tuple[int, int]) -> tuple[int, int]:
    return (-row[0], -row[1])


def test_what_stays_is_what_a_model_says(h: Harness) -> None:
    big, at = h.backend.bigint, h.backend.instant
    columns = f"id {big} PRIMARY KEY, account {big}, place {big}, ts {at}"
    h.sql(f"CREATE TABLE events ({columns}) TTL = ts + INTERVAL 1 DAY")
    h.sql("CREATE INDEX events_last ON events (account, place, id)")
    h.sql("CREATE INDEX events_place ON events (place, id)")

    @settings(max_examples=4, database=None)
    @given(rows=_ROWS, last=st.integers(1, 3), grouped=st.booleans())
    def check(rows: list[tuple[int | None, int | None, bool]], last: int, grouped: bool) -> None:
        h.sql("DELETE FROM events")
        h.sql(f"ALTER TABLE events SET (ttl_keep_last = '{last}{' BY (account)' if grouped else ''} ORDER BY place')")
        values = [
            f"({i}, {'NULL' if by is None else by}, {'NULL' if place is None else place},"
            f" {h.at(days=-2) if old else h.at()})"
            for i, (by, place, old) in enumerate(rows)
        ]
        if values:
            h.sql(f"INSERT INTO events (id, account, place, ts) VALUES {', '.join(values)}")
        assert not h.run("events").failed
        assert h.ids() == _left(rows, last, grouped=grouped)

    check()


GROUPS, ROUNDS = 6, 60


def test_the_last_row_is_there_whatever_other_sessions_do(h: Harness) -> None:
    """Each writer owns some groups, so it knows which row is the last of each from its own commit to its next look."""
    _events(h, keep="ttl_keep_last = '1 BY (account) ORDER BY ts'")
    _insert(h, *((100 * group + i, group, h.at(days=-9, minutes=i)) for group in range(GROUPS) for i in range(5)))
    done = Event()

    def expire() -> None:
        with h.open() as worker:
            while not done.is_set():
                worker.run("events")

    with ThreadPoolExecutor(3) as pool:
        expiring = pool.submit(expire)
        writing = [pool.submit(_write, h, range(number, GROUPS, 2), number) for number in range(2)]
        try:
            for each in writing:
                each.result()
        finally:
            done.set()
        expiring.result()


def _write(h: Harness, groups: range, seed: int) -> None:
    chance, last = random.Random(seed), dict.fromkeys(groups, 0)
    with h.client() as connection:
        for group in groups:
            last[group] = _last(connection, group)
        for number in range(ROUNDS):
            group = chance.choice(groups)
            assert _last(connection, group) == last[group]
            with _deadlocks_undo(connection):
                _change(
                    h, connection, group, last, chance.choice(["add", "remove", "turn"]), 1000 * group + number + 100
                )


@contextmanager
def _deadlocks_undo(connection: Connection) -> Iterator[None]:
    """InnoDB may choose the writer as the one that begins again."""
    try:
        yield
    except OperationalError as error:
        if "deadlock" not in str(error).lower():
            raise
        connection.exec_driver_sql("ROLLBACK")


def _change(h: Harness, connection: Connection, group: int, last: dict[int, int], what: str, fresh: int) -> None:
    """In one transaction; it may wait for a batch, and then finds fewer rows."""
    connection.exec_driver_sql("BEGIN" if h.features.concurrent_writers else "BEGIN IMMEDIATE")
    if what == "remove":
        connection.exec_driver_sql(f"DELETE FROM events WHERE id = {last[group]}")
    elif what == "turn":
        connection.exec_driver_sql(f"UPDATE events SET ts = '2020-01-01 00:00:00' WHERE id = {last[group]}")
    else:
        connection.exec_driver_sql(
            f"INSERT INTO events (id, account, ts) VALUES ({fresh}, {group}, '2021-01-01 00:00:{fresh % 60:02}')"
        )
    found = _ids(connection, group)
    connection.exec_driver_sql("COMMIT" if found else "ROLLBACK")
    last[group] = found[0] if found else last[group]


def _last(connection: Connection, group: int) -> int:
    return _ids(connection, group)[0]


def _ids(connection: Connection, group: int) -> list[int]:
    found = connection.exec_driver_sql(f"SELECT id FROM events WHERE account = {group} ORDER BY ts DESC, id DESC")
    return [int(number) for number in found.scalars()]


def test_kept_and_held_rows_are_neither_deleted_nor_archived_and_the_others_come_back(h: Harness) -> None:
    if not h.db.engine.features.managed_column:
        pytest.skip("there are no archives here")
    _events(h, more=", ttl_archive = 'table:', ttl_filter = 'id > 1'")
    _insert(h, *((i, 1, h.at(days=-2, minutes=i)) for i in range(1, 9)))
    h.owner.hold("events", where="id = 4")
    assert h.run_one().counts.deleted == 4
    assert h.ids() == [1, 4, 7, 8]
    assert h.ids("events_archive") == [2, 3, 5, 6]
    restored = h.owner.restore("events")
    assert (restored.restored, h.ids()) == (4, [1, 2, 3, 4, 5, 6, 7, 8])
    # Restored rows are held, so the next run leaves them alone.
    h.run_one()
    assert h.ids() == [1, 2, 3, 4, 5, 6, 7, 8]
