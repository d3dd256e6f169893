"""Policies and their physical tables as stored: versions, what is due, what is blocked, what a guard holds."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, select

from lapse.catalog import policies, schema
from lapse.catalog.policies import PhysicalTable
from lapse.errors import Retryable
from lapse.model.blocked import BlockCode
from lapse.model.policy import Policy
from lapse.model.table import TableName
from lapse.runner.limiter import take
from tests.unit.catalog.make import declared, tabled
from tests.unit.runner.build import NOW, ago

LATER = NOW + timedelta(hours=1)


def only(connection: Connection) -> PhysicalTable:
    (found,) = policies.list_tables(connection)
    return found


def waiting(
    connection: Connection, now: datetime = NOW, *, after_grace: bool = False, changing: bool = False
) -> set[int]:
    return policies.waiting_policies(connection, now, after_grace=after_grace, changing=changing)


# Policies


def test_a_policy_is_read_as_it_was_declared(connection: Connection) -> None:
    policy = Policy(expression="at", delete_batch_size=7, label_metrics=True)
    made = declared(
        connection,
        policy=policy,
        declared_by="alice",
        source=policies.COMMENT,
        source_text="ttl_duration=60;",
        grace_until=LATER,
        suspended=BlockCode.DATABASE_COPIED,
    )
    found = policies.find_policy(connection, TableName("events"))
    assert found == made == policies.get_policy(connection, made.id)
    assert (made.policy, made.version, made.created_at, made.changed_at) == (policy, 1, NOW, NOW)
    assert (made.declared_by, made.source, made.source_text) == ("alice", "comment", "ttl_duration=60;")
    assert (made.grace_until, made.suspended, made.cleared_at) == (LATER, BlockCode.DATABASE_COPIED, None)


def test_a_change_is_a_new_version_and_the_old_one_is_kept(connection: Connection) -> None:
    first = declared(connection)
    second = declared(connection, policy=Policy(expression="at + INTERVAL '1 day'"), now=LATER)
    assert (second.id, second.version, second.created_at, second.changed_at) == (first.id, 2, NOW, LATER)
    kept = connection.execute(select(schema.policy_version).order_by(schema.policy_version.c.version)).all()
    assert [(row.version, Policy.from_json(row.options).expression, row.changed_at) for row in kept] == [
        (1, "at", NOW),
        (2, "at + INTERVAL '1 day'", LATER),
    ]


def test_of_two_changes_at_the_same_time_one_has_to_try_again(connection: Connection) -> None:
    seen = declared(connection)
    declared(connection, policy=Policy(expression="at", pause=True), current=seen)
    for current in (seen, None):
        with pytest.raises(Retryable, match="another session has just declared a policy on table events"):
            declared(connection, current=current)
    found = policies.get_policy(connection, seen.id)
    assert found is not None and (found.version, found.policy.pause) == (2, True)


def test_tables_of_one_name_in_two_schemas_are_two(connection: Connection) -> None:
    one = declared(connection)
    other = TableName("events", "archive")
    assert policies.find_policy(connection, other) is None
    policies.rename_policy(connection, one.id, other)
    assert policies.find_policy(connection, TableName("events")) is None
    found = policies.find_policy(connection, other)
    assert found is not None and found.table == other
    assert policies.policy_tables(connection) == {other}


def test_policies_come_in_the_order_of_their_names(connection: Connection) -> None:
    for name in ("b", "c", "a"):
        declared(connection, name)
    assert [str(stored.table) for stored in policies.list_policies(connection)] == ["a", "b", "c"]


def test_many_policies_are_found_in_several_statements(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "CHUNK", 2)
    made = [declared(connection, f"t{number}") for number in range(5)]
    tables = [physical for stored in made for physical in tabled(connection, stored)]
    wanted = {stored.id for stored in made[:-1]} | {4711}
    assert {stored.id for stored in policies.find_policies(connection, wanted)} == wanted - {4711}
    assert policies.find_tables(connection, wanted, NOW) == tables[:-1]
    assert policies.find_policies(connection, []) == []


def test_a_policy_goes_with_its_tables_and_its_rate_limits(connection: Connection) -> None:
    gone, other = declared(connection, "gone"), declared(connection, "other")
    tabled(connection, gone), tabled(connection, other)
    for name in (f"delete:{gone.id}", f"select:{gone.id}", f"delete:{other.id}", "delete"):
        take(connection, name, 10, 1, NOW)
    policies.delete_policy(connection, gone, reason="", now=NOW)
    assert policies.get_policy(connection, gone.id) is None
    assert only(connection).policy_id == other.id
    left = set(connection.execute(select(schema.rate.c.name)).scalars())
    assert left == {f"delete:{other.id}", "delete"}
    # An id is not used again: what is remembered about a policy must not become that of another.
    assert declared(connection, "new").id > other.id


def test_what_a_policy_is_armed_with_ends_its_suspension(connection: Connection) -> None:
    stored = declared(connection)
    policies.suspend_policies(connection, BlockCode.DATABASE_COPIED, NOW)
    suspended = policies.get_policy(connection, stored.id)
    assert suspended is not None and suspended.suspended is BlockCode.DATABASE_COPIED
    policies.set_armed(connection, stored.id, '{"table": 2}', "g")
    found = policies.get_policy(connection, stored.id)
    assert found is not None
    assert (found.armed, found.fingerprint, found.suspended) == ('{"table": 2}', "g", None)


# Physical tables


def test_leaves_are_made_those_that_exist(connection: Connection) -> None:
    stored = declared(connection)
    before = {physical.partition: physical.id for physical in tabled(connection, stored, "p1", "p2")}
    after = {physical.partition: physical.id for physical in tabled(connection, stored, "p2", "p3")}
    assert set(after) == {"p2", "p3"}
    assert after["p2"] == before["p2"]
    assert after["p3"] not in before.values()


def test_a_leaf_of_another_schema_is_another_leaf(connection: Connection) -> None:
    stored = declared(connection)
    names = [TableName("events", None, "p1"), TableName("events", None, "p1", "old")]
    found = policies.sync_tables(connection, stored.id, names)
    assert sorted(str(physical.name_in(stored.table)) for physical in found) == ["events[old.p1]", "events[p1]"]


def test_a_new_table_is_due_and_one_that_was_taken_is_not(connection: Connection) -> None:
    stored = declared(connection)
    (physical,) = tabled(connection, stored)
    assert waiting(connection) == {stored.id}
    assert policies.untouched(connection, [physical]) == {physical.id}
    assert policies.take_table(connection, physical, LATER)
    assert waiting(connection) == set()
    assert policies.untouched(connection, [physical]) == set()
    assert waiting(connection, LATER) == {stored.id}


def test_of_two_that_saw_a_table_due_one_gets_it(connection: Connection) -> None:
    (physical,) = tabled(connection, declared(connection))
    assert policies.take_table(connection, physical, LATER)
    assert not policies.take_table(connection, physical, LATER + timedelta(hours=1))
    assert only(connection).next_run_at == LATER


def test_a_grace_period_is_waited_for_where_that_is_asked(connection: Connection) -> None:
    stored = declared(connection, grace_until=LATER)
    tabled(connection, stored)
    assert waiting(connection) == {stored.id}
    assert waiting(connection, after_grace=True) == set()
    assert waiting(connection, LATER, after_grace=True) == {stored.id}
    policies.end_grace(connection, stored.id)
    assert waiting(connection, after_grace=True) == {stored.id}


def test_a_first_run_that_waits_for_a_person_is_looked_at_again(connection: Connection) -> None:
    stored = declared(connection)
    (physical,) = tabled(connection, stored)
    policies.set_next_run(connection, physical.id, LATER)
    assert waiting(connection) == set()
    policies.set_guard(connection, stored.id, cleared_at=None, held="waiting for confirmation")
    assert waiting(connection) == {stored.id}
    policies.set_guard(connection, stored.id, cleared_at=NOW)
    assert waiting(connection) == set()
    found = policies.get_policy(connection, stored.id)
    assert found is not None and (found.cleared_at, found.held) == (NOW, None)


def test_policies_that_may_get_other_tables_are_asked_about_those(connection: Connection) -> None:
    plain, leaves, bare = (declared(connection, name) for name in ("plain", "leaves", "bare"))
    for physical in (*tabled(connection, plain), *tabled(connection, leaves, "p1")):
        policies.set_next_run(connection, physical.id, LATER)
    assert waiting(connection) == set()
    assert waiting(connection, changing=True) == {leaves.id, bare.id}


def test_tables_that_have_nothing_to_delete_are_passed_over(connection: Connection) -> None:
    stored = declared(connection)
    due, other = tabled(connection, stored, "p1", "p2")
    policies.block_table(connection, due, BlockCode.LOCKED, "locked", retry_at=ago(minutes=1), now=ago(minutes=2))
    policies.set_next_run(connection, other.id, LATER)
    policies.pass_over(connection, [due, other], clean_at=NOW, next_run_at=LATER + timedelta(hours=1))
    first, second = policies.list_tables(connection)
    assert (first.clean_at, first.next_run_at, first.failures) == (NOW, LATER + timedelta(hours=1), 0)
    assert (first.blocked, first.blocked_reason, first.blocked_since) == (None, None, None)
    # This one was not due any more.
    assert (second.clean_at, second.next_run_at) == (None, LATER)


# Blocked tables


def test_a_table_is_blocked_since_the_first_time_with_one_code(connection: Connection) -> None:
    (physical,) = tabled(connection, declared(connection))
    policies.block_table(connection, physical, BlockCode.LOCKED, "one", retry_at=NOW, now=ago(minutes=9))
    policies.block_table(connection, only(connection), BlockCode.LOCKED, "two", retry_at=LATER, now=ago(minutes=5))
    found = only(connection)
    assert (found.blocked, found.blocked_reason, found.blocked_since) == (BlockCode.LOCKED, "two", ago(minutes=9))
    assert (found.failures, found.next_run_at) == (2, LATER)
    policies.block_table(connection, found, BlockCode.TABLE_GONE, "gone", retry_at=LATER, now=NOW)
    assert (only(connection).blocked_since, only(connection).failures) == (NOW, 3)


def test_taking_a_table_unblocks_it_and_keeps_count_of_its_failures(connection: Connection) -> None:
    (physical,) = tabled(connection, declared(connection))
    policies.block_table(connection, physical, BlockCode.LOCKED, "locked", retry_at=NOW, now=NOW)
    policies.take_table(connection, only(connection), LATER)
    assert (only(connection).blocked, only(connection).blocked_reason, only(connection).failures) == (None, None, 1)
    policies.forget_failures(connection, physical.id)
    assert only(connection).failures == 0


def test_unblocking_is_for_tables_that_are_blocked(connection: Connection) -> None:
    stored = declared(connection)
    blocked, fine = tabled(connection, stored, "p1", "p2")
    policies.block_table(connection, blocked, BlockCode.GUARD, "held", retry_at=LATER, now=NOW)
    policies.set_next_run(connection, fine.id, LATER)
    policies.unblock_tables(connection, stored.id)
    first, second = policies.list_tables(connection)
    assert (first.next_run_at, first.blocked, first.failures) == (None, None, 0)
    assert second.next_run_at == LATER


def test_a_table_is_hastened_and_never_delayed(connection: Connection) -> None:
    (physical,) = tabled(connection, declared(connection))
    policies.set_next_run(connection, physical.id, LATER)
    policies.hasten_table(connection, only(connection), retry_at=NOW)
    assert (only(connection).next_run_at, only(connection).failures) == (NOW, 1)
    policies.hasten_table(connection, only(connection), retry_at=LATER)
    assert (only(connection).next_run_at, only(connection).failures) == (NOW, 2)


def test_a_gate_is_shown_without_touching_the_schedule(connection: Connection) -> None:
    (physical,) = tabled(connection, declared(connection))
    policies.set_next_run(connection, physical.id, LATER)
    policies.shut_gate(connection, physical.id, "lag", NOW)
    found = only(connection)
    assert (found.blocked, found.blocked_reason, found.next_run_at) == (BlockCode.GATE, "lag", LATER)
    policies.open_gate(connection, physical.id)
    assert (only(connection).blocked, only(connection).blocked_reason) == (None, None)


def test_an_open_gate_leaves_other_reasons_alone(connection: Connection) -> None:
    (physical,) = tabled(connection, declared(connection))
    policies.block_table(connection, physical, BlockCode.PRIVILEGE, "GRANT", retry_at=LATER, now=NOW)
    policies.open_gate(connection, physical.id)
    assert only(connection).blocked is BlockCode.PRIVILEGE
