"""Facts, settings, workers and the pulse of a catalog, as stored."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Connection

from lapse.catalog import meta, policies, settings, workers
from lapse.catalog.pulse import Pulse, has_old_rows, read_pulse
from lapse.catalog.workers import WorkerRow
from lapse.errors import InvalidValue, NotFound, UsageError
from lapse.model.settings import Settings
from lapse.model.table import TableName
from tests.unit.catalog.make import begun, declared, ended, tabled
from tests.unit.runner.build import NOW, ago

EVENTS = TableName("events")
LATER = NOW + timedelta(hours=1)


def worker(name: str = "w1", **fields: object) -> WorkerRow:
    values = {"address": "host:1", "version": "1", "started_at": ago(hours=1), "heartbeat_at": NOW, "state": "{}"}
    return WorkerRow(id=name, **values | fields)  # type: ignore[arg-type]


# Facts


def test_a_fact_is_written_once_where_there_was_none(connection: Connection) -> None:
    assert meta.read_fact(connection, meta.PLACE) is None
    assert meta.replace_fact(connection, meta.PLACE, None, "here")
    assert not meta.replace_fact(connection, meta.PLACE, None, "there")
    assert meta.read_fact(connection, meta.PLACE) == "here"


def test_a_fact_is_replaced_by_the_one_that_has_read_the_present_one(connection: Connection) -> None:
    meta.replace_fact(connection, meta.PLACE, None, "here")
    assert meta.replace_fact(connection, meta.PLACE, "here", "there")
    assert not meta.replace_fact(connection, meta.PLACE, "here", "elsewhere")
    assert meta.read_fact(connection, meta.PLACE) == "there"


def test_a_comment_is_rejected_with_its_text_and_on_its_table(connection: Connection) -> None:
    meta.reject_comment(connection, EVENTS, "ttl_duration=60;")
    meta.reject_comment(connection, EVENTS, "ttl_duration=60;")
    known = meta.rejections(connection)
    assert meta.is_rejected(known, EVENTS, "ttl_duration=60;")
    assert not meta.is_rejected(known, EVENTS, "ttl_duration=61;")
    assert not meta.is_rejected(known, TableName("events", "other"), "ttl_duration=60;")
    assert not meta.is_rejected(known, TableName("logs"), "ttl_duration=60;")
    meta.accept_comment(connection, EVENTS, "ttl_duration=60;")
    assert meta.rejections(connection) == frozenset()


def test_a_name_cannot_be_mistaken_for_part_of_a_text(connection: Connection) -> None:
    meta.reject_comment(connection, TableName("a", "b"), "c")
    assert not meta.is_rejected(meta.rejections(connection), TableName("ba"), "c")


# Settings


def test_a_setting_is_stored_in_its_own_spelling_and_reset(connection: Connection) -> None:
    assert settings.load_settings(connection) == Settings.from_texts({})
    assert settings.save_setting(connection, "LAPSE_MODE", "Fast", NOW) == ("lapse_mode", "fast")
    settings.save_setting(connection, "lapse_mode", "whisper", NOW)
    assert settings.stored_texts(connection) == {"lapse_mode": "whisper"}
    assert settings.load_settings(connection).mode == "whisper"
    assert settings.reset_setting(connection, "Lapse_Mode", NOW) == "lapse_mode"
    assert settings.stored_texts(connection) == {}


def test_what_no_setting_can_be_is_refused_and_nothing_is_stored(connection: Connection) -> None:
    with pytest.raises(InvalidValue):
        settings.save_setting(connection, "lapse_mode", "frantic", NOW)
    with pytest.raises((NotFound, UsageError)):
        settings.save_setting(connection, "lapse_modus", "fast", NOW)
    with pytest.raises((NotFound, UsageError)):
        settings.reset_setting(connection, "lapse_modus", NOW)
    assert settings.stored_texts(connection) == {}


def test_a_clock_is_not_trusted_until_it_is(connection: Connection) -> None:
    assert not settings.trust_clock(connection, NOW)
    settings.hold_clock(connection, "it jumped by a year", NOW)
    settings.hold_clock(connection, "it jumped by two", NOW)
    assert settings.load_settings(connection).clock_hold == "it jumped by two"
    assert settings.trust_clock(connection, NOW)
    assert settings.load_settings(connection).clock_hold is None


# Workers


def test_a_heartbeat_makes_a_row_and_then_renews_it(connection: Connection) -> None:
    workers.beat_worker(connection, worker(heartbeat_at=ago(minutes=5)))
    workers.beat_worker(connection, worker(started_at=NOW, state='{"tasks": [1]}'))
    assert workers.list_workers(connection) == [worker(state='{"tasks": [1]}')]


def test_workers_that_are_gone_are_forgotten(connection: Connection) -> None:
    for name, minutes in (("a", 9), ("b", 5), ("c", 1)):
        workers.beat_worker(connection, worker(name, heartbeat_at=ago(minutes=minutes)))
    assert workers.forget_workers(connection, stale_before=ago(minutes=5)) == 1
    workers.remove_worker(connection, "c")
    assert [each.id for each in workers.list_workers(connection)] == ["b"]


# The pulse


@pytest.fixture
def before(connection: Connection) -> Pulse:
    stored = declared(connection)
    policies.take_table(connection, tabled(connection, stored)[0], LATER)
    return read_pulse(connection, NOW)


def test_a_pulse_that_nothing_has_changed_is_the_same(connection: Connection, before: Pulse) -> None:
    workers.beat_worker(connection, worker())
    assert read_pulse(connection, NOW + timedelta(minutes=59)) == before
    assert (before.policies, before.tables, before.due, before.next_due_at) == (1, 1, 0, LATER)


def test_what_falls_due_is_felt(connection: Connection, before: Pulse) -> None:
    found = read_pulse(connection, LATER)
    assert (found.due, found.next_due_at) == (1, None)


def test_a_changed_policy_is_felt(connection: Connection, before: Pulse) -> None:
    declared(connection)
    assert read_pulse(connection, NOW) != before


def test_a_new_policy_in_the_place_of_another_is_felt(connection: Connection, before: Pulse) -> None:
    (old,) = policies.list_policies(connection)
    policies.delete_policy(connection, old, reason="", now=NOW)
    stored = declared(connection)
    policies.take_table(connection, tabled(connection, stored)[0], LATER)
    found = read_pulse(connection, NOW)
    assert (found.policies, found.versions, found.tables) == (before.policies, before.versions, before.tables)
    assert found != before


def test_a_grace_period_that_ends_is_felt(connection: Connection) -> None:
    stored = declared(connection, grace_until=LATER)
    policies.take_table(connection, tabled(connection, stored)[0], LATER + timedelta(days=1))
    assert [read_pulse(connection, at).in_grace for at in (NOW, LATER)] == [1, 0]


def test_a_setting_is_felt_when_it_is_set_changed_and_reset(connection: Connection, before: Pulse) -> None:
    settings.save_setting(connection, "lapse_mode", "fast", NOW)
    first = read_pulse(connection, NOW)
    settings.save_setting(connection, "lapse_mode", "whisper", NOW + timedelta(seconds=1))
    second = read_pulse(connection, NOW)
    settings.reset_setting(connection, "lapse_mode", NOW)
    assert before != first != second != before
    assert read_pulse(connection, NOW) == before


def test_a_job_is_felt_while_it_is_active(connection: Connection, before: Pulse) -> None:
    (stored,), (physical,) = policies.list_policies(connection), policies.list_tables(connection)
    job_id = begun(connection, stored, physical)
    assert read_pulse(connection, NOW).active_jobs == 1
    ended(connection, job_id)
    assert read_pulse(connection, NOW) == before


def test_old_rows_are_there_or_not(connection: Connection) -> None:
    def old() -> bool:
        return has_old_rows(connection, jobs_before=ago(days=1), workers_before=ago(minutes=1))

    stored = declared(connection)
    (physical,) = tabled(connection, stored)
    ended(connection, begun(connection, stored, physical), at=ago(hours=23))
    workers.beat_worker(connection, worker())
    assert not old()
    workers.beat_worker(connection, worker(heartbeat_at=ago(minutes=2)))
    assert old()
    workers.remove_worker(connection, "w1")
    ended(connection, begun(connection, stored, physical), at=ago(days=1))
    assert old()
