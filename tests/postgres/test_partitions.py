"""Partitions: every leaf a physical table, dropped whole where its whole range has expired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from lapse.catalog import policies
from lapse.cli.output import Output
from lapse.cli.preview import show_all
from lapse.engines.postgres import inspect
from lapse.errors import PolicyConflict, Unsupported
from lapse.model.job import JobStatus, PathKind
from lapse.runner.promise import Health
from tests.conformance.harness import Harness
from tests.conformance.test_idle import counted

MONTHS = ("2026-01-01", "2026-02-01", "2026-03-01", "2026-04-01")


def create(h: Harness, ttl: str = "TTL = ts + INTERVAL 14 DAY", extra: str = "") -> None:
    h.sql(f"CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ NOT NULL{extra}) PARTITION BY RANGE (ts) {ttl}")
    for number, (low, high) in enumerate(pairwise(MONTHS), start=1):
        h.sql(f"CREATE TABLE p{number} PARTITION OF events FOR VALUES FROM ('{low}') TO ('{high}')")
    h.sql("CREATE TABLE rest PARTITION OF events DEFAULT")
    h.sql(
        "INSERT INTO events VALUES (1, '2026-01-10'), (2, '2026-02-10'), (3, '2026-02-28 23:00'), (4, '2026-03-01'),"
        " (5, '2026-03-02'), (6, '2025-01-01'), (7, '2026-05-01')"
    )


def test_every_leaf_has_its_own_job(each: Harness) -> None:
    create(each)
    jobs = {job.table.partition: job for job in each.run().jobs}
    assert {name: job.counts.deleted for name, job in jobs.items()} == {"p1": 1, "p2": 2, "p3": 1, "rest": 1}
    assert each.ids() == [5, 7]
    assert [str(row.table) for row in each.db.status()] == [
        f"public.events[{name}]" for name in ("p1", "p2", "p3", "rest")
    ]


def test_whole_partitions_are_dropped_and_the_boundary_is_emptied_row_by_row(each: Harness) -> None:
    create(each, "WITH (ttl_expiration_expression = 'ts + INTERVAL ''14 days''', ttl_partition_drop = 'on')")
    jobs = {job.table.partition: job for job in each.run().jobs}
    assert {name: job.path.kind for name, job in jobs.items()} == {
        "p1": PathKind.PARTITION,
        "p2": PathKind.PARTITION,
        "p3": PathKind.PHYSICAL,
        "rest": PathKind.PHYSICAL,
    }
    assert sum(job.counts.deleted for job in jobs.values()) == 5
    assert all(job.status is JobStatus.FINISHED for job in jobs.values())
    assert each.ids() == [5, 7]
    assert each.rows("SELECT to_regclass('p1'), to_regclass('p2'), to_regclass('p3')::text") == [(None, None, "p3")]
    assert {job.table.partition for job in each.run().jobs} == {"p3", "rest"}


def test_a_locked_parent_only_delays_the_drop(h: Harness) -> None:
    create(h, "WITH (ttl_expiration_expression = 'ts + INTERVAL ''14 days''', ttl_partition_drop = 'on')")
    import threading

    reader = psycopg.connect(h.url)
    reader.execute("SELECT * FROM events")
    timer = threading.Timer(0.6, reader.close)
    timer.start()
    assert h.run().complete
    timer.join()
    assert h.ids() == [5, 7]


def test_a_declaration_locks_no_partition(h: Harness) -> None:
    """A stock server has room for the locks of some thousands."""
    create(h, ttl="")
    with psycopg.connect(h.url) as other:
        other.execute("LOCK TABLE p1 IN ACCESS EXCLUSIVE MODE")
        h.sql("ALTER TABLE events TTL = ts + INTERVAL 14 DAY")
    assert [str(stored.table) for stored in h.db.policies()] == ["public.events"]


def test_foreign_keys_keep_partitions_from_being_dropped(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ NOT NULL, PRIMARY KEY (id, ts)) PARTITION BY RANGE (ts)"
        " WITH (ttl_expiration_expression = 'ts', ttl_partition_drop = 'on')"
    )
    h.sql("CREATE TABLE p1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')")
    h.sql("CREATE TABLE child (id INTEGER, ts TIMESTAMPTZ, FOREIGN KEY (id, ts) REFERENCES events)")
    h.sql("INSERT INTO events VALUES (1, '2026-01-10'), (2, '2026-01-11')")
    h.sql("INSERT INTO child VALUES (1, '2026-01-10')")
    (job,) = h.run().jobs
    assert (job.path.kind, job.counts.deleted, job.counts.held) == (PathKind.PHYSICAL, 1, 1)


def test_partitions_of_partitions_in_other_schemas(each: Harness) -> None:
    each.sql('CREATE SCHEMA "old ""ones"')
    each.sql("CREATE TABLE events (id INTEGER, ts DATE, kind TEXT) PARTITION BY LIST (kind)")
    each.sql("ALTER TABLE events SET (ttl_time_zone = 'UTC'), TTL = ts + INTERVAL 1 DAY")
    each.sql("ALTER TABLE events SET (ttl_partition_drop = 'on')")
    each.sql("CREATE TABLE a PARTITION OF events FOR VALUES IN ('a') PARTITION BY RANGE (ts)")
    each.sql("""CREATE TABLE "old ""ones"."a.1" PARTITION OF a FOR VALUES FROM (MINVALUE) TO ('2026-01-01')""")
    each.sql("CREATE TABLE a2 PARTITION OF a FOR VALUES FROM ('2026-01-01') TO (MAXVALUE)")
    each.sql("CREATE TABLE b PARTITION OF events FOR VALUES IN ('b') PARTITION BY HASH (id)")
    each.sql("CREATE TABLE b0 PARTITION OF b FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    each.sql(
        "INSERT INTO events VALUES (1, '2025-12-01', 'a'), (2, '2026-03-01', 'a'), (3, '2026-03-15', 'a'),"
        " (4, '2026-03-01', 'b'), (5, '2026-03-15', 'b')"
    )
    jobs = {job.table.partition: (job.path.kind, job.counts.deleted) for job in each.run().jobs}
    assert jobs == {
        "a.1": (PathKind.PARTITION, 1),
        "a2": (PathKind.PHYSICAL, 1),
        "b0": (PathKind.PHYSICAL, 1),
    }
    assert each.ids() == [3, 5]


def test_partitions_added_detached_and_attached_again(h: Harness) -> None:
    create(h)
    assert h.run().deleted == 5
    h.sql("CREATE TABLE p4 PARTITION OF events FOR VALUES FROM ('2026-04-01') TO ('2026-05-01')")
    h.sql("ALTER TABLE events DETACH PARTITION p3")
    h.sql("INSERT INTO p3 VALUES (8, '2026-03-01')")
    assert {job.table.partition for job in h.run().jobs} == {"p1", "p2", "p4", "rest"}
    h.sql("ALTER TABLE events ATTACH PARTITION p3 FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')")
    assert h.run().deleted == 1


def test_a_partition_dropped_while_its_job_waits(h: Harness) -> None:
    create(h)
    worker = h.db.worker()
    tick = worker._scheduler.run_once()
    h.sql("ALTER TABLE events DETACH PARTITION p1; DROP TABLE p2")
    worker.run()
    ended = {job.table.partition: job for job in h.db.history() if job.id in {made.id for made in tick.jobs}}
    assert ended["p1"].status is JobStatus.FAILED
    assert "p2 of table public.events does not exist any more" in (ended["p2"].reason or "")
    assert ended["p3"].status is JobStatus.FINISHED
    assert h.rows("SELECT id FROM p1") == [(1,)]


def test_the_managed_column_on_partitions(each: Harness) -> None:
    create(each, "WITH (ttl_expire_after = '1 hour')")
    each.sql("CREATE TABLE p4 PARTITION OF events FOR VALUES FROM ('2026-04-01') TO ('2026-05-01')")
    each.sql("INSERT INTO events VALUES (9, '2026-04-02')")
    each.sql("UPDATE events SET crdb_internal_expiration = '2020-01-01' WHERE id IN (1, 9)")
    each.sql("UPDATE events SET id = id WHERE id = 9")
    each.run()
    assert each.ids() == [2, 3, 4, 5, 6, 7, 9]


def test_a_leaf_with_a_policy_of_its_own(h: Harness) -> None:
    create(h)
    h.sql("ALTER TABLE p1 SET (ttl_expiration_expression = 'ts + INTERVAL ''10 years''')")
    jobs = h.run(None).jobs
    assert sorted(str(job.table) for job in jobs) == [
        "public.events[p2]",
        "public.events[p3]",
        "public.events[rest]",
        "public.p1",
    ]
    assert h.ids() == [1, 5, 7]
    with pytest.raises(Unsupported, match="is a partition"):
        h.sql("ALTER TABLE p2 SET (ttl_expire_after = '1 day')")


def test_durations_by_partition_in_a_comment(each: Harness) -> None:
    create(each, ttl="")
    each.sql("COMMENT ON TABLE events IS 'p1_ttl_duration=3600;p1_ttl_col=ts;p2_ttl_duration=1209600;p2_ttl_col=ts;'")
    each.run(None)
    assert each.ids() == [4, 5, 6, 7]


def test_durations_by_partition_of_the_managed_column(h: Harness, client: psycopg.Connection) -> None:
    create(h, ttl="")
    h.sql("COMMENT ON TABLE events IS 'ttl_duration=86400;p1_ttl_duration=60;'")
    h.run(None)
    client.execute("INSERT INTO events VALUES (20, '2026-01-02'), (21, '2026-02-02')")
    client.execute("INSERT INTO events VALUES (22, '2026-01-02', NULL), (23, '2026-01-02', '2040-01-01')")
    seconds: dict[int, int | None] = dict(
        client.execute(
            "SELECT id, extract(epoch FROM crdb_internal_expiration - now())::int FROM events WHERE id >= 20"
        ).fetchall()
    )
    assert seconds[22] is None
    assert (seconds[23] or 0) > 86400 * 365
    assert 50 <= (seconds[20] or 0) <= 60
    assert 86390 <= (seconds[21] or 0) <= 86400


def test_partition_parameters_need_partitions(h: Harness) -> None:
    h.events()
    with pytest.raises(Unsupported, match="no partitions"):
        h.sql("ALTER TABLE events SET (ttl_partition_drop = 'on')")


def test_tables_that_inherit_are_tables_of_their_own(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ); CREATE TABLE heir () INHERITS (events)")
    h.insert((1, h.at(days=-2)))
    h.insert((2, h.at(days=-2)), table="heir")
    declared = h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts')")
    assert "table public.heir inherits from public.events" in declared.notices[0]
    assert h.run_one().counts.deleted == 1
    assert h.ids("heir") == [2]


def test_a_partition_with_the_name_of_another_table(h: Harness) -> None:
    """Names are stored in two columns and never taken apart."""
    h.sql("CREATE TABLE orders (id INTEGER, ts TIMESTAMPTZ)")
    h.sql(f"INSERT INTO orders VALUES (1, {h.at(days=-100)})")
    h.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ) PARTITION BY RANGE (ts) TTL = ts + INTERVAL 1 SECOND")
    h.sql('CREATE TABLE """public"".""orders""" PARTITION OF events DEFAULT')
    h.sql(f"INSERT INTO events VALUES (2, {h.at(days=-1)}), (3, {h.at(days=1)})")
    (job,) = h.run().jobs
    assert (job.table.partition, job.counts.deleted) == ('"public"."orders"', 1)
    assert h.ids() == [3]
    assert h.ids("orders") == [1]


def test_a_leaf_that_begins_later_is_not_even_touched(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ) PARTITION BY RANGE (ts) TTL = ts + INTERVAL 1 DAY")
    h.sql("CREATE TABLE p1 PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-03-15')")
    h.sql("CREATE TABLE p2 PARTITION OF events FOR VALUES FROM ('2026-03-15') TO ('2026-04-01')")
    h.sql("INSERT INTO events VALUES (1, '2026-01-10'), (2, '2026-03-20')")
    jobs = {job.table.partition: job for job in h.run().jobs}
    assert jobs["p1"].counts.deleted == 1
    assert jobs["p2"].tasks_total == 0
    assert "begins later" in (jobs["p2"].path.evidence or "")


def test_the_preview_of_many_partitions_is_one_total(each: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    each.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ NOT NULL, PRIMARY KEY (id, ts)) PARTITION BY RANGE (ts)")
    for number in range(10):
        low, high = each.at(days=number - 8), each.at(days=number - 7)
        each.sql(f"CREATE TABLE p{number} PARTITION OF events FOR VALUES FROM ({low}) TO ({high})")
        each.sql(f"INSERT INTO events VALUES ({number}, {low}), ({number + 100}, {low})")
    each.sql(
        "CREATE TABLE child (id INTEGER PRIMARY KEY, event INTEGER, ts TIMESTAMPTZ,"
        " FOREIGN KEY (event, ts) REFERENCES events (id, ts) ON DELETE CASCADE)"
    )
    each.sql("INSERT INTO child SELECT id, id, ts FROM events")
    each.sql("CREATE TABLE hold (event INTEGER, ts TIMESTAMPTZ, FOREIGN KEY (event, ts) REFERENCES events (id, ts))")
    each.sql("INSERT INTO hold SELECT id, ts FROM events WHERE id = 1")
    show_all(Output(), each.owner.preview("events", column="ts", after="3 days"))
    text = capsys.readouterr().out
    assert "Table public.events, 10 partitions: if rows expired 3 days after ts (not declared)" in text
    assert "would delete  11 of 20 rows (55%)" in text
    assert "held          1 expired row stays: rows of public.hold refer to it" in text
    assert "with them     11 rows of public.child, by ON DELETE CASCADE" in text
    assert "6 emptied row by row, 4 with nothing expired" in text
    assert "-v shows each" in text
    assert "and 8 more for other partitions" in text
    assert len(text.splitlines()) < 24, "however many partitions there are"
    show_all(Output(), each.owner.preview("events", column="ts", after="3 days"), verbose=True)
    assert capsys.readouterr().out.count("Table public.events[") == 10
    each.sql("ALTER TABLE events TTL = ts + INTERVAL '3 days'")
    assert each.db.run("events").deleted == 11
    assert each.rows("SELECT count(*) FROM child") == [(9,)]


def test_a_drop_is_called_one(each: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    each.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ NOT NULL) PARTITION BY RANGE (ts)")
    for number in range(3):
        low, high = each.at(days=3 * number - 6), each.at(days=3 * number - 3)
        each.sql(f"CREATE TABLE p{number} PARTITION OF events FOR VALUES FROM ({low}) TO ({high})")
    each.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts', ttl_partition_drop = on)")
    each.sql(f"INSERT INTO events VALUES (1, {each.at(days=-5)})")
    show_all(Output(), each.db.preview("events"), verbose=True)
    text = capsys.readouterr().out
    assert "2 dropped whole, 1 with nothing expired" in text
    assert "path          the whole partition is dropped: every row of p0 is older than" in text


def _hourly(h: Harness, count: int) -> None:
    """A table with a leaf per hour, from now on."""
    h.sql("CREATE TABLE hours (id BIGINT, ts TIMESTAMPTZ) PARTITION BY RANGE (ts)")
    with h.client() as client:
        for number in range(count):
            low, high = h.now + timedelta(hours=number), h.now + timedelta(hours=number + 1)
            client.exec_driver_sql(
                f"CREATE TABLE hours_{number} PARTITION OF hours FOR VALUES FROM ('{low}') TO ('{high}')"
            )
    h.sql("ALTER TABLE hours TTL = ts + INTERVAL 1 HOUR")
    h.sql("ALTER TABLE hours SET (ttl_grace = '0 seconds')")


@pytest.mark.parametrize("count", [12, 60])
def test_leaves_that_cannot_hold_expired_rows_get_no_job(h: Harness, count: int) -> None:
    _hourly(h, count)
    h.insert((1, h.at()), (2, h.at(hours=2)), table="hours")
    h.advance(hours=1, minutes=1)
    result = h.db.run()
    assert {job.table.partition for job in result.jobs} == {"hours_0"}
    assert result.deleted == 1
    (health,) = h.db.health()
    assert (health.health, len(health.parts)) == (Health.ON_TIME, count)
    assert len(h.owner.history(limit=1000)) == 1
    # Those that were passed over are late when no worker looks at them again, and due at the next time.
    h.advance(days=2)
    (health,) = h.db.health()
    assert health.health is Health.LATE
    assert {job.table.partition for job in h.db.run().jobs} >= {"hours_1", "hours_2"}
    assert h.ids("hours") == []


def test_a_round_over_many_leaves_is_a_fixed_number_of_statements(h: Harness) -> None:
    taken = []
    for count in (36, 60):
        _hourly(h, count)
        scheduler = h.db.worker()._scheduler
        assert scheduler.run_once(patient=True).jobs == ()
        h.owner.request_run("hours")
        with counted(h.db) as statements:
            assert scheduler.run_once(patient=True).jobs == ()
        taken.append(len(statements))
        h.sql("DROP TABLE hours")
    assert taken[0] == taken[1]


def _rows_read(h: Harness, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """What a run of the table reads: statements, rows of the server's catalog, and leaves of Lapse's own."""
    found: list[int] = []
    made: list[object] = []
    read, build = inspect.rows, policies._physical

    def counting(*asked: Any) -> list[dict[str, Any]]:
        answer = read(*asked)
        found.append(len(answer))
        return answer

    def building(row: Any) -> policies.PhysicalTable:
        made.append(row)
        return build(row)

    with monkeypatch.context() as patched, counted(h.db) as statements:
        patched.setattr(inspect, "rows", counting)
        patched.setattr(policies, "_physical", building)
        assert h.db.run("hours").deleted == 1
    return len(statements), sum(found), len(made)


def test_a_run_reads_the_leaves_that_may_have_expired_rows_and_no_others(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    for count in (30, 90):
        _hourly(h, count)
        h.db.run("hours")
        h.advance(hours=1)
        h.insert((1, h.at(hours=-1)), table="hours")
        taken.append(_rows_read(h, monkeypatch))
        h.sql("DROP TABLE hours")
    (statements, found, made), (statements_of_many, found_of_many, made_of_many) = taken
    assert (found_of_many, made_of_many) == (found, made)
    assert made < 3 * 8
    # Questions that are asked once a second, as that for the gauges, may fall into one of the runs.
    assert statements_of_many <= statements + 4


BEHIND = {
    "other bounds": (
        "ALTER TABLE hours DETACH PARTITION hours_50; TRUNCATE hours_50;"
        " ALTER TABLE hours ATTACH PARTITION hours_50 FOR VALUES FROM (MINVALUE) TO ('{past}')"
    ),
    "made anew": (
        "DROP TABLE hours_50; CREATE TABLE hours_50 PARTITION OF hours FOR VALUES FROM (MINVALUE) TO ('{past}')"
    ),
    "a swap of names": (
        "CREATE TABLE older PARTITION OF hours FOR VALUES FROM (MINVALUE) TO ('{past}');"
        " ALTER TABLE hours_50 RENAME TO newer; ALTER TABLE older RENAME TO hours_50"
    ),
    "a new one": "CREATE TABLE older PARTITION OF hours FOR VALUES FROM (MINVALUE) TO ('{past}')",
    "one that is parted again": (
        "CREATE TABLE older PARTITION OF hours FOR VALUES FROM (MINVALUE) TO ('{past}') PARTITION BY HASH (id);"
        " ALTER TABLE hours DETACH PARTITION hours_50;"
        " ALTER TABLE older ATTACH PARTITION hours_50 FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
    ),
}


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("change", BEHIND)
def test_what_is_known_of_a_leaf_holds_for_its_bounds_alone(h: Harness, change: str, asked: bool) -> None:
    _hourly(h, 60)
    h.db.run()
    h.db.run()
    with h.client() as client:
        for statement in BEHIND[change].format(past=h.now).split(";"):
            client.exec_driver_sql(statement)
        client.exec_driver_sql(f"INSERT INTO hours VALUES (1, '{h.now - timedelta(hours=5)}')")
    h.advance(minutes=0 if asked else 1)
    assert h.db.run("hours" if asked else None).deleted == 1
    assert h.ids("hours") == []
    assert h.db.run("hours").deleted == 0


@pytest.mark.parametrize("asked", [True, False])
def test_what_is_known_of_leaves_holds_for_one_policy_alone(h: Harness, asked: bool) -> None:
    _hourly(h, 60)
    h.sql("ALTER TABLE hours TTL = ts + INTERVAL 30 DAY")
    h.insert((1, h.at(hours=1)), (2, h.at(hours=40)), table="hours")
    h.db.run()
    h.sql("ALTER TABLE hours TTL = ts + INTERVAL 1 HOUR")
    h.advance(hours=3)
    assert h.db.run("hours" if asked else None).deleted == 1
    assert h.ids("hours") == [2]


def test_a_leaf_that_gets_a_policy_of_its_own_is_left_to_it(h: Harness) -> None:
    _hourly(h, 60)
    h.insert((1, h.at(hours=50)), table="hours")
    h.db.run()
    h.sql("ALTER TABLE hours_50 SET (ttl_expiration_expression = 'ts - INTERVAL 60 HOUR', ttl_grace = '0 seconds')")
    assert [job.table.name for job in h.db.run().jobs if job.counts.deleted] == ["hours_50"]
    known = {part.table.partition for health in h.db.health() for part in health.parts}
    assert len(known) == 60 and "hours_50" not in known
    h.sql("ALTER TABLE hours_50 RESET (ttl)")
    h.db.run("hours")
    assert "hours_50" in {part.table.partition for health in h.db.health() for part in health.parts}


@pytest.mark.parametrize("column", ["TIMESTAMPTZ", "TIMESTAMP", "DATE"])
def test_leaves_are_looked_at_in_time_when_clocks_are_put_back(h: Harness, column: str) -> None:
    """A run every two hours, around a change of clocks and the end of a month, leaves no expired row."""
    h.clock.advance(datetime(2026, 10, 29, 6, tzinfo=UTC) - h.now)
    first = h.now.replace(tzinfo=None) - timedelta(days=31)
    h.sql(f"CREATE TABLE hours (id BIGINT, ts {column}) PARTITION BY RANGE (ts)")
    step = timedelta(days=1) if column == "DATE" else timedelta(hours=4)
    with h.client() as client:
        for number in range(20):
            low, high = (f"{first + each * step:%Y-%m-%d %H:%M}" for each in (number, number + 1))
            client.exec_driver_sql(f"CREATE TABLE p{number} PARTITION OF hours FOR VALUES FROM ('{low}') TO ('{high}')")
            client.exec_driver_sql(f"INSERT INTO hours VALUES ({number}, '{low}')")
    h.sql("ALTER TABLE hours TTL = ts + INTERVAL 1 MONTH")
    h.sql("ALTER TABLE hours SET (ttl_grace = '0 seconds', ttl_guard = off, ttl_time_zone = 'America/New_York')")
    h.sql("CREATE TABLE whole (id BIGINT, ts TIMESTAMPTZ)".replace("TIMESTAMPTZ", column))
    h.sql("INSERT INTO whole SELECT * FROM hours")
    h.sql("ALTER TABLE whole TTL = ts + INTERVAL 1 MONTH")
    h.sql("ALTER TABLE whole SET (ttl_grace = '0 seconds', ttl_guard = off, ttl_time_zone = 'America/New_York')")
    for _ in range(40):
        h.db.run()
        assert h.ids("hours") == h.ids("whole")
        h.advance(hours=2)
    assert len(h.ids("hours")) < 20


@pytest.mark.parametrize("by_hash", [True, False])
def test_leaves_below_a_later_part_get_no_job(h: Harness, by_hash: bool) -> None:
    """Of two levels: hours that are split by hash, and numbers that are split by hours."""
    outer, inner = ("RANGE (ts)", "HASH (id)") if by_hash else ("LIST (id)", "RANGE (ts)")
    begins = [h.now + timedelta(hours=number) for number in range(-3, 9)]
    hours = [f"FROM ('{low}') TO ('{low + timedelta(hours=1)}')" for low in begins]
    numbers = [f"WITH (MODULUS 2, REMAINDER {n})" for n in range(2)] if by_hash else ["IN (0)", "IN (1)"]
    h.sql(f"CREATE TABLE hours (id BIGINT, ts TIMESTAMPTZ) PARTITION BY {outer}")
    with h.client() as client:
        for place, bound in enumerate(hours if by_hash else numbers):
            client.exec_driver_sql(f"CREATE TABLE o{place} PARTITION OF hours FOR VALUES {bound} PARTITION BY {inner}")
            for below, bound_below in enumerate(numbers if by_hash else hours):
                client.exec_driver_sql(f"CREATE TABLE o{place}_{below} PARTITION OF o{place} FOR VALUES {bound_below}")
    h.sql("ALTER TABLE hours TTL = ts + INTERVAL 1 HOUR")
    h.sql("ALTER TABLE hours SET (ttl_grace = '0 seconds', ttl_guard = off)")
    moments = [low + timedelta(minutes=30 * half) for low in begins for half in range(2)]
    for number, moment in enumerate(moments):
        h.sql(f"INSERT INTO hours VALUES ({number % 2}, '{moment}')")
    result = h.db.run()
    left = [moment for moment in moments if moment + timedelta(hours=1) > h.now]
    assert [row[0] for row in h.rows("SELECT ts FROM hours ORDER BY ts")] == left
    # The hours that are over, and the one that began an hour ago.
    over = [(hour, number) for hour in range(3) for number in range(2)]
    assert {job.table.partition for job in result.jobs} == {
        f"o{hour}_{number}" if by_hash else f"o{number}_{hour}" for hour, number in over
    }
    h.advance(days=1)
    h.db.run()
    assert h.rows("SELECT count(*) FROM hours") == [(0,)]


def test_a_hold_reaches_every_policy_on_its_rows_or_is_refused(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id bigint, ts timestamptz NOT NULL) PARTITION BY RANGE (ts);"
        " CREATE TABLE below PARTITION OF events FOR VALUES FROM (MINVALUE) TO (MAXVALUE) PARTITION BY RANGE (ts);"
        " CREATE TABLE leaf PARTITION OF below FOR VALUES FROM (MINVALUE) TO (MAXVALUE)"
    )
    h.sql("INSERT INTO events VALUES (1, '2020-01-01')")
    h.sql("ALTER TABLE leaf SET (ttl_expiration_expression = 'ts')")
    for name in ("events", "below"):
        with pytest.raises(PolicyConflict, match=r"policy of table public\.leaf deletes rows"):
            h.db.hold(name)
    h.sql("ALTER TABLE leaf RESET (ttl)")
    placed = h.db.hold("events")
    for name in ("leaf", "below"):
        with pytest.raises(PolicyConflict, match=f"hold {placed.id} is for rows of table public.events"):
            h.sql(f"ALTER TABLE {name} SET (ttl_expiration_expression = 'ts')")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'ts')")
    assert h.run("events").deleted == 0
    with pytest.raises(PolicyConflict, match=r"policy of table public\.events deletes rows"):
        h.db.hold("leaf")
    h.db.release(placed.id)
    assert h.run("events").deleted == 1
