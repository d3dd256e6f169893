"""Policies as code: planning and applying a file, twice, on every engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lapse.app import PolicyFile, facade, read_file
from lapse.app.policyfile import ChangeKind
from lapse.model.table import TableName
from lapse.runner import guard
from tests.conformance.harness import Harness
from tests.conformance.test_idle import counted

FILE = """
[defaults]
ttl_delete_rate_limit = 5000

[tables.events]
column = "ts"
after = "1 day"
ttl_job_cron = "@daily"

[tables.sessions]
ttl_expire_after = "8 hours"

[tables.tickets]
ttl_expiration_expression = "CASE WHEN id > 5 THEN ts END"

[tables.accounts]
exclude = "accounts stay"
"""


def _file(folder: Path, text: str) -> PolicyFile:
    path = folder / "lapse.toml"
    path.write_text(text, encoding="utf-8")
    return read_file(path, variables={})


def _tables(h: Harness) -> None:
    if not h.features.managed_column:
        pytest.skip("there is no managed column")
    for name in ("events", "sessions", "tickets", "accounts"):
        h.sql(f"CREATE TABLE {name} (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})")
    h.insert((1, h.at(days=-2)), (2, h.at()))


def test_apply_and_then_there_is_nothing_to_plan(h: Harness, tmp_path: Path) -> None:
    _tables(h)
    file = _file(tmp_path, FILE)
    plan = h.owner.plan(file)
    assert {change.table.name: change.action for change in plan.changes} == dict.fromkeys(
        ("events", "sessions", "tickets"), ChangeKind.CREATE
    )
    assert (plan.problems, plan.unmanaged, plan.unchanged) == ((), (), 1)
    first = plan.changes[0].first_run
    assert first is not None
    assert (first.rows, first.expired, first.exact, first.held) == (2, 1, True, None)
    h.owner.apply(plan)
    again = h.owner.plan(file)
    assert again.is_empty
    assert again.unchanged == 4
    assert h.owner.policy("events").policy.delete_rate_limit == 5000
    assert h.run_one().counts.deleted == 1
    # The file that is written for a database says what the database has.
    draft = h.owner.draft()
    assert h.owner.plan(_file(tmp_path, draft)).is_empty, draft


def test_changes_are_found_by_value(h: Harness, tmp_path: Path) -> None:
    _tables(h)
    h.owner.apply(h.owner.plan(_file(tmp_path, FILE)))
    same = FILE.replace('"1 day"', '"24 hours"').replace("5000", '"5000"')
    assert h.owner.plan(_file(tmp_path, same)).is_empty
    plan = h.owner.plan(_file(tmp_path, FILE.replace('"1 day"', '"2 days"').replace('ttl_job_cron = "@daily"', "")))
    (change,) = plan.changes
    assert change.action is ChangeKind.CHANGE
    assert [(f.name, f.before, f.after) for f in change.changed] == [
        ("after", "1 day", "2 days"),
        ("ttl_job_cron", "@daily", None),
    ]
    h.owner.apply(plan)
    assert h.owner.policy("events").policy.job_cron is None


def test_pausing_is_left_to_the_operators(h: Harness, tmp_path: Path) -> None:
    _tables(h)
    file = _file(tmp_path, FILE)
    h.owner.apply(h.owner.plan(file))
    h.owner.pause("events")
    assert h.owner.plan(file).is_empty
    said = _file(tmp_path, FILE.replace('after = "1 day"', 'after = "1 day"\nttl_pause = false'))
    (change,) = h.owner.plan(said).changes
    assert [field.name for field in change.changed] == ["ttl_pause"]


def test_what_the_file_does_not_mention_stays_unless_pruned(h: Harness, tmp_path: Path) -> None:
    _tables(h)
    h.owner.apply(h.owner.plan(_file(tmp_path, FILE)))
    less = _file(tmp_path, FILE.replace("[tables.sessions]\nttl_expire_after", "[tables.tickets2]\nexclude"))
    plan = h.owner.plan(less)
    assert [name.name for name in plan.unmanaged] == ["sessions"]
    assert [problem.table for problem in plan.problems] == ["tickets2"]
    fewer = _file(tmp_path, FILE.replace('[tables.sessions]\nttl_expire_after = "8 hours"', ""))
    pruned = h.owner.plan(fewer, prune=True)
    assert [(change.action, change.table.name) for change in pruned.changes] == [(ChangeKind.REMOVE, "sessions")]
    h.owner.apply(pruned)
    assert h.owner.plan(fewer, prune=True).is_empty
    assert {stored.table.name for stored in h.owner.policies()} == {"events", "tickets"}


def test_a_policy_on_an_excluded_table_is_removed(h: Harness, tmp_path: Path) -> None:
    _tables(h)
    h.sql("ALTER TABLE accounts TTL = ts + INTERVAL 1 DAY")
    plan = h.owner.plan(_file(tmp_path, '[tables.accounts]\nexclude = "they stay"\n'))
    (change,) = plan.changes
    assert change.action is ChangeKind.REMOVE
    assert change.statement.endswith("RESET (ttl)")
    h.sql(change.statement)
    assert h.owner.policies() == []


def test_what_cannot_work_is_a_problem_and_nothing_is_changed(h: Harness, tmp_path: Path) -> None:
    _tables(h)
    plan = h.owner.plan(_file(tmp_path, '[tables.events]\ncolumn = "nope"\nafter = "1 day"\n'))
    (problem,) = plan.problems
    assert problem.place == "lapse.toml:1"
    assert "nope" in problem.text
    assert plan.changes == ()


def test_a_first_run_that_would_be_held_is_announced(h: Harness, tmp_path: Path) -> None:
    _tables(h)
    size = guard.SMALL_TABLE_ROWS
    guard.SMALL_TABLE_ROWS = 2
    try:
        h.sql(f"UPDATE events SET ts = {h.at(days=-3)}")
        plan = h.owner.plan(_file(tmp_path, FILE))
    finally:
        guard.SMALL_TABLE_ROWS = size
    first = plan.changes[0].first_run
    assert first is not None
    assert first.held == "the first run would delete 2 of 2 rows (100%)"


def test_candidates_are_found_and_lint_wants_a_word_about_each(h: Harness, tmp_path: Path) -> None:
    big, instant = h.backend.bigint, h.backend.instant
    h.sql(f"CREATE TABLE django_session (session_key {h.backend.key_text} PRIMARY KEY, expire_date {instant})")
    h.sql(f"CREATE TABLE logins (id {big} PRIMARY KEY, created_at {instant}, expires_at {h.backend.text})")
    h.sql(f"CREATE TABLE accounts (id {big} PRIMARY KEY, name {h.backend.text})")
    found = {candidate.table.name: candidate for candidate in h.owner.candidates()}
    assert found["django_session"].keys == {"ttl_expiration_expression": "expire_date"}
    assert found["django_session"].why == "Django sessions"
    assert found["logins"].keys["after" if h.features.time_types else "ttl_expiration_expression"]
    assert found["accounts"].keys == {}
    draft = _file(tmp_path, h.owner.draft())
    assert draft.tables == ()
    assert len(h.owner.lint(draft)) == 3
    bare = h.owner.draft().replace("# [tables", "[tables").replace("# column", "column").replace("# after", "after")
    bare = bare.replace("# exclude", "exclude").replace("# ttl_exp", "ttl_exp")
    full = _file(tmp_path, bare)
    assert h.owner.lint(full) == []
    assert [change.action for change in h.owner.plan(full).changes] == [ChangeKind.CREATE, ChangeKind.CREATE]
    assert h.owner.lint(_file(tmp_path, bare + '\n[tables.gone]\nexclude = "gone"\n'))[0].table == "gone"
    assert json.dumps(found["logins"].why)


def test_a_draft_is_what_a_careful_dba_would_propose(h: Harness) -> None:
    """No TTL for tables that others refer to; what a comment declares is taken as it is."""
    big, instant = h.backend.bigint, h.backend.instant
    h.sql(f"CREATE TABLE users (id {big} PRIMARY KEY, created_at {instant})")
    h.sql(
        f"CREATE TABLE orders (id {big} PRIMARY KEY, user_id {big}, created_at {instant},"
        " FOREIGN KEY (user_id) REFERENCES users (id))"
    )
    found = {each.table.name: each for each in h.owner.candidates()}
    assert found["orders"].keys
    assert not found["users"].keys
    assert "orders refer to its rows" in found["users"].why
    if h.features.table_comments:
        comment = "ttl_duration=86400;ttl_col=created_at;"
        statement = f"COMMENT ON TABLE orders IS '{comment}'" if h.features.transactional_ddl else ""
        h.sql(statement or f"ALTER TABLE orders COMMENT = '{comment}'")
        drafts = {each.table.name: each.keys for each in h.owner.candidates()}
        stored = {each.table.name for each in h.owner.policies()} if "orders" not in drafts else set()
        assert "orders" in stored or drafts["orders"]["after"] == "1 day"


MANY = 24
"""More than it takes for all tables to be described together."""
STATEMENTS_PER_POLICY = 40
"""Of planning and applying one new entry among many."""
STATEMENTS_PER_NATIVE = 50
"""Where the server is asked for TTL of its own as well."""


def _many(h: Harness, folder: Path, *, first: int, after: int) -> PolicyFile:
    with h.client() as client:
        for number in range(first, after):
            client.exec_driver_sql(
                f"CREATE TABLE m{number} (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})"
            )
    return _file(folder, "".join(f"[tables.m{number}]\ncolumn = 'ts'\nafter = '1 day'\n" for number in range(after)))


def test_many_entries_at_once(h: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As for all but the first of many.
    monkeypatch.setattr(facade, "FIRST_RUNS_TOLD", 0)
    h.owner.catalog.install()
    few = _many(h, tmp_path, first=0, after=MANY)
    with counted(h.owner) as statements:
        h.owner.apply(h.owner.plan(few))
    # SQLite answers from memory, and describes tables one by one.
    most = STATEMENTS_PER_POLICY if h.features.own_settings else STATEMENTS_PER_NATIVE
    assert len(statements) < most * MANY or not h.features.concurrent_writers
    declared = h.owner.policies()
    assert {stored.table.name for stored in declared} == {f"m{number}" for number in range(MANY)}
    assert all(stored.armed for stored in declared) and len({stored.declared_by for stored in declared}) == 1
    h.insert((1, h.at(days=-2)), (2, h.at()), table="m7")
    h.advance(hours=1)
    h.db.run()
    assert h.ids("m7") == [2]


def test_a_table_that_cannot_have_its_policy_among_many(h: Harness, tmp_path: Path) -> None:
    """It is told as it is alone, beside one that does not exist, and nothing is changed for the others."""
    file = _many(h, tmp_path, first=0, after=MANY)
    with h.client() as client:
        client.exec_driver_sql("DROP TABLE m3")
        client.exec_driver_sql("DROP TABLE m5")
        client.exec_driver_sql(f"CREATE TABLE m5 (id {h.backend.bigint} PRIMARY KEY, other {h.backend.instant})")
    alone = _file(tmp_path, "\n" * 9 + "[tables.m3]\ncolumn = 'ts'\nafter = '1 day'\n")
    told = {problem.table: problem.text for problem in h.owner.plan(file).problems}
    assert told.keys() == {"m3", "m5"}
    assert told["m3"] == h.owner.plan(alone).problems[0].text
    assert "does not exist in table" in told["m5"] and "m5" in told["m5"]
    assert h.owner._policies_if_any() == []


def test_tables_that_are_described_together_are_what_each_is_alone(h: Harness) -> None:
    number, time = h.backend.bigint, h.backend.instant
    with h.client() as client:
        for each in range(MANY):
            client.exec_driver_sql(f"CREATE TABLE m{each} (id {number} PRIMARY KEY, ts {time})")
        client.exec_driver_sql(f"CREATE TABLE keyless (a {number}, ts {time})")
        client.exec_driver_sql(f"CREATE TABLE pair (b {number} NOT NULL, a {number} NOT NULL, PRIMARY KEY (b, a))")
        client.exec_driver_sql("CREATE INDEX later ON pair (a)")
        client.exec_driver_sql(f"CREATE TABLE {h.q('Odd na%me')} (id {number} PRIMARY KEY, {h.q('t s')} {time})")
        client.exec_driver_sql(
            f"CREATE TABLE child (id {number} PRIMARY KEY, m0 {number} REFERENCES m0 (id), ts {time})"
        )
        client.exec_driver_sql("CREATE VIEW seen AS SELECT * FROM m1")
        if h.features.partitions:
            how = "PARTITION BY RANGE (id)"
            parts = "" if h.features.transactional_ddl else " (PARTITION p0 VALUES LESS THAN (9))"
            client.exec_driver_sql(f"CREATE TABLE parted (id {number} PRIMARY KEY) {how}{parts}")
    others = ["keyless", "pair", "Odd na%me", "child", "seen", "gone", *(["parted"] if h.features.partitions else [])]
    names = [TableName(name) for name in (*others, *(f"m{each}" for each in range(MANY)))]
    engine = h.owner.engine
    with engine.connection() as connection:
        together = engine.describe_all(connection, names)
        assert together == {name: engine.describe(connection, name) for name in together}
    assert TableName("gone") not in together
    if together:
        assert {TableName("m7"), TableName("pair"), TableName("child"), TableName("keyless")} <= together.keys()
