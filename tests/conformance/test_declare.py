"""Declaring TTL: three dialects, one meaning; what is refused changes nothing."""

from __future__ import annotations

from threading import Thread

import pytest

from lapse.app import Lapse
from lapse.errors import LapseError, PolicyConflict, Refused, Retryable, TableNotFound, UsageError
from lapse.model import interval
from tests.conformance.harness import Harness


def test_cockroach_with_clause(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(9)) WITH (ttl_expire_after = '5 minutes')")
    (stored,) = h.db.policies()
    assert stored.policy.expire_after == interval.parse("5 minutes")
    assert stored.table.name == "events"


def test_tidb_clause_and_its_comment_form_say_the_same(h: Harness) -> None:
    instant = h.backend.instant
    h.sql(f"CREATE TABLE a (id INTEGER PRIMARY KEY, ts {instant}) TTL = ts + INTERVAL 3 MONTH TTL_ENABLE = 'OFF'")
    clause = "/*T![ttl] TTL = ts + INTERVAL 3 MONTH TTL_ENABLE='OFF' */"
    h.sql(f"CREATE TABLE b (id INTEGER PRIMARY KEY, ts {instant}) {clause}")
    first, second = h.db.policies()
    assert first.policy == second.policy
    assert first.policy.pause


def test_myrocks_comment(h: Harness) -> None:
    h.sql(
        f"CREATE TABLE events (id INTEGER PRIMARY KEY, ts {h.backend.bigint} NOT NULL)"
        " COMMENT='ttl_duration=60;ttl_col=ts;'"
    )
    (stored,) = h.db.policies()
    assert stored.policy.column == "ts"
    assert stored.policy.interval == interval.parse("60 seconds")
    seconds = int(h.now.timestamp())
    h.sql(f"INSERT INTO events (id, ts) VALUES (1, {seconds - 60}), (2, {seconds - 59})")
    h.run()
    assert h.ids() == [2]


def test_alter_an_existing_table(h: Harness) -> None:
    h.sql(f"CREATE TABLE events (id INTEGER PRIMARY KEY, ts {h.backend.instant})")
    h.sql(f"INSERT INTO events (id, ts) VALUES (1, {h.at(days=-9)}), (2, {h.at()})")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + ''1 day''::interval', ttl_job_cron = '@daily')")
    h.run()
    assert h.ids() == [2]
    (stored,) = h.db.policies()
    assert (stored.policy.column, stored.policy.job_cron) == ("ts", "@daily")


def test_adding_the_managed_column_gives_old_rows_the_full_interval(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(9))")
    h.sql("INSERT INTO events (id, body) VALUES (1, 'old')")
    h.sql("ALTER TABLE events SET (ttl_expire_after = '2 days')")
    h.advance(days=1)
    h.run()
    assert h.ids() == [1]
    h.advance(days=2)
    h.run()
    assert h.ids() == []


def test_hostile_names(h: Harness) -> None:
    table, column, key = 'ev"en`t;s --', "tim'e [at] %s :x", "the key"
    q = h.q
    h.sql(
        f"CREATE TABLE {q(table)} ({q(key)} INTEGER PRIMARY KEY, {q(column)} {h.backend.instant}) "
        f"TTL = {q(column)} + INTERVAL 1 DAY"
    )
    h.sql(f"INSERT INTO {q(table)} VALUES (1, {h.at(days=-2)}), (2, {h.at()})")
    assert h.db.run(q(table)).deleted == 1
    assert h.rows(f"SELECT {q(key)} FROM {q(table)}") == [(2,)]
    h.sql(f"ALTER TABLE {q(table)} SET (ttl_expire_after = '1 day')")
    h.sql(f"ALTER TABLE {q(table)} RESET (ttl)")
    assert h.db.policies() == []


def test_changing_parameters_keeps_the_rest(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_select_batch_size = 200, ttl_delete_batch_size = 50)")
    h.sql("ALTER TABLE events RESET (ttl_select_batch_size)")
    h.sql("ALTER TABLE events TTL_JOB_INTERVAL='1d'")
    (stored,) = h.db.policies()
    policy = stored.policy
    assert (policy.select_batch_size, policy.delete_batch_size) == (None, 50)
    assert policy.job_interval == interval.parse("1 day")
    assert policy.column == "ts"
    assert stored.version == 4


def test_reset_ttl_removes_column_triggers_and_policy(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(9)) WITH (ttl_expire_after = '5 minutes')")
    h.sql("ALTER TABLE events RESET (ttl)")
    assert h.db.policies() == []
    h.sql("INSERT INTO events VALUES (1, 'x')")
    assert h.rows("SELECT * FROM events") == [(1, "x")]


def test_remove_ttl(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events REMOVE TTL")
    assert h.db.policies() == []


def test_from_the_managed_column_to_an_expression_and_back(h: Harness) -> None:
    h.sql(
        f"CREATE TABLE events (id INTEGER PRIMARY KEY, ts {h.backend.instant}) WITH (ttl_expire_after = '10 minutes')"
    )
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts')")
    h.sql("ALTER TABLE events RESET (ttl_expire_after)")
    h.sql(f"INSERT INTO events (id, ts) VALUES (1, {h.at(seconds=-1)})")
    h.run()
    assert h.ids() == []
    h.sql("ALTER TABLE events SET (ttl_expire_after = '10 minutes')")
    h.sql("ALTER TABLE events RESET (ttl_expiration_expression)")
    (stored,) = h.db.policies()
    assert stored.policy.expire_after == interval.parse("10 minutes")
    assert stored.policy.column is None


def test_if_not_exists_on_an_existing_table_changes_nothing(h: Harness) -> None:
    h.events()
    result = h.sql(
        f"CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 9 DAY"
    )
    assert "exists already" in result.notices[0]
    assert h.db.policies()[0].policy.interval == interval.parse("1 day")


BAD = [
    ("ALTER TABLE events SET (ttl_nonsense = 1)", "ttl_nonsense"),
    ("ALTER TABLE events SET (ttl_expire_after = 'soon')", "ttl_expire_after"),
    ("ALTER TABLE events SET (ttl_expire_after = '10')", "unit"),
    ("ALTER TABLE events SET (ttl_expire_after = '-5 minutes')", "negative"),
    ("ALTER TABLE events SET (ttl_expire_after = '0 minutes')", "zero"),
    ("ALTER TABLE events SET (ttl_select_batch_size = 0)", "ttl_select_batch_size"),
    ("ALTER TABLE events SET (ttl_select_batch_size = -1)", "ttl_select_batch_size"),
    ("ALTER TABLE events SET (ttl_job_cron = 'bad expr')", "ttl_job_cron"),
    ("ALTER TABLE events SET (ttl_time_zone = 'Mars/Olympus')", "ttl_time_zone"),
    ("ALTER TABLE events SET (ttl_hide_expired = 'maybe')", "ttl_hide_expired"),
    ("ALTER TABLE events SET (ttl_expiration_expression = 'nope + ''1 day''::interval')", "nope"),
    ("ALTER TABLE events SET (ttl_expiration_expression = '(SELECT max(ts) FROM events)')", ""),
    ("ALTER TABLE events SET (ttl_expiration_expression = 'max(ts)')", "max"),
    ("ALTER TABLE events SET (ttl_expiration_expression = 'random()')", "random"),
    ("ALTER TABLE events SET (ttl_expiration_expression = 'ts); DROP TABLE events; --')", ""),
    ("ALTER TABLE events SET (ttl_expiration_expression = 'flag')", ""),
    ("ALTER TABLE events TTL = nope + INTERVAL 1 DAY", "nope"),
    ("ALTER TABLE events TTL = flag + INTERVAL 1 DAY", "flag"),
    ("ALTER TABLE events TTL_ENABLE = 'perhaps'", "TTL_ENABLE"),
    ("ALTER TABLE events SET (ttl_pause = 'on')", "no TTL"),
    ("ALTER TABLE events TTL_JOB_INTERVAL = '1h'", "no TTL"),
    ("ALTER TABLE events RESET (ttl)", "no TTL"),
    ("ALTER TABLE events TTL = ts + INTERVAL 1 DAY REMOVE TTL", ""),
    ("ALTER TABLE missing SET (ttl_expire_after = '1 day')", "missing"),
    ("CREATE TEMPORARY TABLE scratch (id INTEGER PRIMARY KEY) WITH (ttl_expire_after = '1 day')", "temporary"),
    ("ALTER TABLE v_events SET (ttl_expire_after = '1 day')", "view"),
    ("CREATE TABLE other (id INTEGER PRIMARY KEY) WITH (ttl_pause = 'on')", "no TTL"),
    ("CREATE TABLE other (id INTEGER PRIMARY KEY) TTL = nope + INTERVAL 1 DAY", "nope"),
]


@pytest.mark.parametrize(("statement", "word"), BAD, ids=[statement for statement, _ in BAD])
def test_bad_input_is_refused_and_nothing_changes(h: Harness, statement: str, word: str) -> None:
    h.sql(f"CREATE TABLE events (id INTEGER PRIMARY KEY, ts {h.backend.instant}, flag BOOLEAN)")
    h.sql(f"INSERT INTO events VALUES (1, {h.at(days=-9)}, TRUE)")
    h.sql("CREATE VIEW v_events AS SELECT * FROM events")
    before = h.rows("SELECT * FROM events")
    with pytest.raises((UsageError, Refused)) as caught:
        h.sql(statement)
    assert word.lower() in str(caught.value).lower()
    assert h.rows("SELECT * FROM events") == before
    with pytest.raises(LapseError):
        h.sql("SELECT * FROM other")
    with pytest.raises(LapseError):
        h.run()


def test_contradicting_clauses_are_refused(h: Harness) -> None:
    with pytest.raises(LapseError):
        h.sql(
            f"CREATE TABLE events (id INTEGER PRIMARY KEY, ts {h.backend.instant}) "
            "WITH (ttl_expire_after = '1 day') TTL = ts + INTERVAL 1 DAY"
        )
    with pytest.raises(TableNotFound):
        h.sql("SHOW CREATE TABLE events")


def test_columns_the_policy_depends_on_are_guarded(h: Harness) -> None:
    h.events(extra=", other INTEGER")
    for statement in ("ALTER TABLE events DROP COLUMN ts", "ALTER TABLE events RENAME COLUMN ts TO created"):
        with pytest.raises(PolicyConflict, match="events"):
            h.sql(statement)
    h.sql("ALTER TABLE events DROP COLUMN other")
    h.insert((1, h.at(days=-2)))
    h.run()
    assert h.ids() == []


def test_renamed_and_dropped_tables_keep_the_catalog_true(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(9)) WITH (ttl_expire_after = '1 day')")
    h.sql("ALTER TABLE events RENAME TO happenings")
    (stored,) = h.db.policies()
    assert stored.table.name == "happenings"
    h.sql("INSERT INTO happenings (id, body) VALUES (1, 'x')")
    h.sql("UPDATE happenings SET body = 'y'")
    assert [f.text for f in h.db.doctor() if f.level == "problem"] == []
    h.sql("DROP TABLE happenings")
    assert h.db.policies() == []


def test_hide_expired_by_a_view(h: Harness) -> None:
    from datetime import UTC, datetime

    h.clock.set(datetime.now(UTC))
    h.events(ttl="WITH (ttl_expiration_expression = 'ts + INTERVAL ''1 hour''', ttl_hide_expired = 'view')")
    h.insert((1, h.at(hours=-2)), (2, h.at(minutes=-30)), (3, "NULL"))
    assert h.ids("events_live") == [2, 3]
    assert h.ids() == [1, 2, 3]
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts + INTERVAL ''3 hours''')")
    assert h.ids("events_live") == [1, 2, 3]
    h.sql("ALTER TABLE events RESET (ttl_hide_expired)")
    with pytest.raises(LapseError):
        h.sql("SELECT * FROM events_live")


def test_a_replication_origin_that_is_not_there_is_refused(h: Harness) -> None:
    """Nor is there one on engines that have no such thing."""
    h.events()
    with pytest.raises(Refused, match="origin"):
        h.sql("ALTER TABLE events SET (ttl_replication_origin = 'nobody')")
    assert h.db.policies()[0].policy.replication_origin is None


def test_many_declarations_of_one_table_at_once(h: Harness) -> None:
    """Each succeeds, one after the other, or says clearly why not; the table has one of them, whole."""
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})")
    failures: list[LapseError] = []

    def declare(days: int) -> None:
        with Lapse(h.url, clock=h.clock) as db:
            try:
                db.execute(f"ALTER TABLE events TTL = ts + INTERVAL {days} DAY")
            except LapseError as error:
                failures.append(error)

    threads = [Thread(target=declare, args=(days,)) for days in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] or (not h.features.skips_locked and all(isinstance(each, Retryable) for each in failures))
    (stored,) = h.owner.policies()
    assert stored.version == len(threads) - len(failures)
    h.insert((1, h.at(days=-9)))
    assert h.run_one().counts.deleted == 1
