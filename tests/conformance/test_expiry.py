"""When a row is expired: the same on every engine."""

from __future__ import annotations

import pytest

from lapse.errors import LapseError
from tests.conformance.harness import Harness


def test_a_row_expires_at_the_instant_itself(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-1)), (2, h.at(days=-1, milliseconds=1)), (3, h.at(days=-1, milliseconds=-1)))
    assert h.run_one().counts.deleted == 2
    assert h.ids() == [2]


def test_null_never_expires(h: Harness) -> None:
    h.events()
    h.insert((1, "NULL"), (2, h.at(days=-400)))
    h.run()
    assert h.ids() == [1]


def test_months_are_calendar_months(h: Harness) -> None:
    h.events(ttl="TTL = ts + INTERVAL 1 MONTH")
    # 15 March minus one month is 15 February, 28 days earlier.
    h.insert((1, h.at(days=-28)), (2, h.at(days=-28, seconds=1)), (3, h.at(days=-30)))
    h.run()
    assert h.ids() == [2]


def test_an_interval_of_zero_means_the_column_is_the_expiry(h: Harness) -> None:
    h.events(ttl="WITH (ttl_expiration_expression = 'ts')")
    h.insert((1, h.at()), (2, h.at(seconds=1)))
    h.run()
    assert h.ids() == [2]


def test_expression_with_a_condition(h: Harness) -> None:
    h.events(
        ttl="WITH (ttl_expiration_expression = 'if(keep, NULL, ts + INTERVAL ''1 hour'')')",
        extra=", keep BOOLEAN",
    )
    h.sql(
        "INSERT INTO events (id, ts, keep) VALUES "
        f"(1, {h.at(hours=-2)}, TRUE), (2, {h.at(hours=-2)}, FALSE), (3, {h.at(minutes=-30)}, FALSE), (4, NULL, FALSE)"
    )
    h.run()
    assert h.ids() == [1, 3, 4]


def test_expression_of_several_columns(h: Harness) -> None:
    h.events(
        ttl="WITH (ttl_expiration_expression = 'CASE WHEN state = ''done'' THEN coalesce(closed, ts) + "
        "INTERVAL ''7 days'' WHEN state IN (''new'', ''open'') THEN NULL ELSE greatest(ts, closed) END')",
        extra=f", closed {h.backend.instant}, state VARCHAR(10)",
    )
    h.sql(
        "INSERT INTO events (id, ts, closed, state) VALUES "
        f"(1, {h.at(days=-30)}, {h.at(days=-8)}, 'done'), "
        f"(2, {h.at(days=-30)}, {h.at(days=-6)}, 'done'), "
        f"(3, {h.at(days=-30)}, NULL, 'done'), "
        f"(4, {h.at(days=-30)}, {h.at(days=-30)}, 'open'), "
        f"(5, {h.at(days=-30)}, {h.at(days=1)}, 'failed'), "
        f"(6, {h.at(days=-30)}, {h.at(days=-1)}, 'failed')"
    )
    h.run()
    assert h.ids() == [2, 4, 5]


def test_current_timestamp_in_an_expression_is_the_jobs_cutoff(h: Harness) -> None:
    h.events(ttl="WITH (ttl_expiration_expression = 'if(ts < current_timestamp() - ''5 minutes'', ts, NULL)')")
    h.insert((1, h.at(minutes=-6)), (2, h.at(minutes=-4)))
    h.run()
    assert h.ids() == [2]


def test_wall_clock_columns_are_read_in_the_policys_zone(h: Harness) -> None:
    h.sql(
        f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.wall_clock})"
        " WITH (ttl_time_zone = 'America/New_York') TTL = ts + INTERVAL 1 HOUR"
    )
    # Noon in UTC is 08:00 in New York, where daylight saving time began a week ago.
    h.sql("INSERT INTO events (id, ts) VALUES (1, '2026-03-15 07:00:00'), (2, '2026-03-15 07:00:01')")
    h.run()
    assert h.ids() == [2]


def test_the_managed_column_stamps_and_the_row_expires(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(20)) WITH (ttl_expire_after = '5 minutes')")
    h.sql("INSERT INTO events (id, body) VALUES (1, 'a'), (2, 'b')")
    h.sql("UPDATE events SET crdb_internal_expiration = NULL WHERE id = 2")
    assert h.run_one().counts.deleted == 0
    h.clock.set(_real_now(h))
    h.let_pass(minutes=6)
    assert h.run_one().counts.deleted == 1
    assert h.ids() == [2]


def _real_now(h: Harness):  # type: ignore[no-untyped-def]
    """Triggers stamp with the server's own clock, so the test's clock must start there."""
    from datetime import UTC, datetime

    return datetime.now(UTC)


@pytest.mark.parametrize("keep", ["never", "later", "renewed"])
def test_updates_of_a_managed_row(h: Harness, keep: str) -> None:
    h.clock.set(_real_now(h))
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(20)) WITH (ttl_expire_after = '5 minutes')")
    h.sql("INSERT INTO events (id, body) VALUES (1, 'a')")
    if keep == "never":
        h.sql("UPDATE events SET crdb_internal_expiration = NULL")
    elif keep == "later":
        h.sql(f"UPDATE events SET crdb_internal_expiration = {h.at(days=3)}")
    else:
        h.sql(f"UPDATE events SET crdb_internal_expiration = {h.at(minutes=-1)}")
    h.sql("UPDATE events SET body = 'b'")
    h.run()
    assert h.ids() == [1]
    h.let_pass(minutes=6)
    h.run()
    assert h.ids() == ([] if keep == "renewed" else [1])
    h.let_pass(days=4)
    h.run()
    assert h.ids() == ([1] if keep == "never" else [])


@pytest.mark.parametrize(("minutes", "renewed"), [(58, False), (51, False), (49, True)])
def test_an_update_soon_after_the_last_renewal_renews_nothing(h: Harness, minutes: int, renewed: bool) -> None:
    h.clock.set(_real_now(h))
    options = "ttl_expire_after = '1 hour', ttl_renew_every = '10 minutes'"
    h.sql(f"CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(20)) WITH ({options})")
    h.sql("INSERT INTO events (id, body) VALUES (1, 'a')")
    h.sql(f"UPDATE events SET crdb_internal_expiration = {h.at(minutes=minutes)}")
    h.sql("UPDATE events SET body = 'b'")
    # A row that was not renewed expires as it would have.
    h.let_pass(minutes=minutes, seconds=30)
    h.run()
    assert h.ids() == ([1] if renewed else [])
    h.let_pass(minutes=61 - minutes)
    h.run()
    assert h.ids() == []


def test_renewing_less_often_can_be_set_and_reset_later(h: Harness) -> None:
    h.clock.set(_real_now(h))
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(20)) WITH (ttl_expire_after = '1 hour')")
    h.sql("INSERT INTO events (id, body) VALUES (1, 'a')")
    h.sql("ALTER TABLE events SET (ttl_renew_every = '10 minutes')")
    assert h.owner.policy("events").policy.options()["renew_every"] == "10 minutes"
    h.run_one()
    h.sql("ALTER TABLE events RESET (ttl_renew_every)")
    h.sql(f"UPDATE events SET crdb_internal_expiration = {h.at(minutes=58)}")
    h.sql("UPDATE events SET body = 'b'")
    h.let_pass(minutes=59)
    h.run_one()
    assert h.ids() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("ttl_expiration_expression = 'ts', ttl_renew_every = '1 minute'", "ttl_expire_after, which is not set"),
        ("ttl_expire_after = '5 minutes', ttl_renew_every = '5 minutes'", "must be shorter than ttl_expire_after"),
        ("ttl_expire_after = '5 minutes', ttl_renew_every = '1 month'", "must not contain months"),
        ("ttl_expire_after = '5 minutes', ttl_renew_every = '0 s'", "must be longer than zero"),
    ],
)
def test_a_renewal_that_makes_no_sense_is_refused(h: Harness, options: str, message: str) -> None:
    h.sql(f"CREATE TABLE events (id INTEGER PRIMARY KEY, ts {h.backend.instant})")
    with pytest.raises(LapseError, match=message):
        h.sql(f"ALTER TABLE events SET ({options})")
    assert h.owner._policies_if_any() == []
