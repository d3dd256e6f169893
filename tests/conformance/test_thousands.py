"""A thousand policies, and tables with two thousand leaves: what it costs to look at them, counted in statements.

`make scale` runs it; `test_many_policies` has the same with a few.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import pytest

from lapse.app import read_file
from lapse.catalog import jobs as stored_jobs
from lapse.runner.scheduler import Scheduler
from tests.conformance.harness import Harness
from tests.conformance.test_idle import counted
from tests.conformance.test_many_policies import CHANCE, _statements

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

FEW, POLICIES = 10, 1_000
SOME, LEAVES = 20, 2_000
WORKERS = 4
MOST_SECONDS = 900
PER_POLICY = 40
"""Statements to plan and apply one new policy."""


def _declare(h: Harness, folder: Path, before: int, after: int) -> int:
    """Tables with an expired row each, and their policies from a file; returns how many statements that took."""
    with h.client() as client:
        for number in range(before, after):
            client.exec_driver_sql(
                f"CREATE TABLE t{number} (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})"
            )
            client.exec_driver_sql(f"INSERT INTO t{number} VALUES (1, {h.at(days=-1)})")
    path = folder / "lapse.toml"
    entry = "[tables.t{}]\nttl_expiration_expression = 'ts'\nttl_grace = '0 seconds'\nttl_guard = false\n"
    path.write_text("".join(entry.format(number) for number in range(after)), encoding="utf-8")
    with counted(h.owner) as statements:
        plan = h.owner.plan(read_file(path))
        assert plan.problems == ()
        h.owner.apply(plan)
    return len(statements)


def _work_off(h: Harness, workers: int, due: int) -> None:
    """Workers serve until so many jobs have ended."""
    opened = [h.open() for _ in range(workers)]
    serving = [database.worker() for database in opened]
    threads = [Thread(target=worker.serve) for worker in serving]
    for thread in threads:
        thread.start()
    try:
        until = monotonic() + MOST_SECONDS
        while sum(not job.status.is_active for job in h.owner.history(limit=2 * POLICIES)) < due:
            assert monotonic() < until, "the tables are not worked off"
            sleep(0.5)
    finally:
        for worker in serving:
            worker.stop()
        for thread in threads:
            thread.join()
        for database in opened:
            database.close()


def _idle(h: Harness) -> Scheduler:
    scheduler = h.db.worker()._scheduler
    for _ in range(2):
        assert scheduler.run_once(patient=True).jobs == ()
    assert scheduler.is_idle()
    return scheduler


def _looks(h: Harness) -> dict[str, int]:
    scheduler = _idle(h)
    with counted(h.db) as statements:
        assert scheduler.is_idle()
    return {"idle": len(statements), **_statements(h.db)}


def test_a_thousand_due_tables_get_one_job_each_and_cost_nothing_more_when_idle(h: Harness, tmp_path: Path) -> None:
    h.owner.catalog.install()
    _declare(h, tmp_path, 0, FEW)
    _work_off(h, 1, FEW)
    few = _looks(h)
    taken = _declare(h, tmp_path, FEW, POLICIES)
    assert taken < PER_POLICY * POLICIES or not h.features.concurrent_writers
    _work_off(h, WORKERS, POLICIES)
    jobs = Counter(job.table.name for job in h.owner.history(limit=2 * POLICIES))
    assert jobs == {f"t{number}": 1 for number in range(POLICIES)}
    with h.client() as client:
        counts = [client.exec_driver_sql(f"SELECT count(*) FROM t{n}").scalar_one() for n in range(POLICIES)]
    assert not any(counts)
    many = _looks(h)
    assert few["idle"] == many["idle"] == 1
    assert {name: many[name] <= few[name] + CHANCE for name in few} == dict.fromkeys(few, True), (few, many)


def _hourly(h: Harness, count: int) -> None:
    """A table with a leaf per hour, from an hour ago on, and a row in the first one."""
    ends = [h.now + timedelta(hours=number) for number in range(count)]
    bounds = [f"{end:%Y-%m-%d %H:%M:%S}" for end in ends]
    with h.client() as client:
        if h.features.transactional_ddl:
            client.exec_driver_sql("CREATE TABLE hours (id BIGINT, ts TIMESTAMPTZ) PARTITION BY RANGE (ts)")
            low = "MINVALUE"
            for number, bound in enumerate(bounds):
                high = f"'{bound}+00'"
                client.exec_driver_sql(f"CREATE TABLE h{number} PARTITION OF hours FOR VALUES FROM ({low}) TO ({high})")
                low = high
        else:
            parts = ", ".join(f"PARTITION h{number} VALUES LESS THAN ('{end}')" for number, end in enumerate(bounds))
            client.exec_driver_sql(
                "CREATE TABLE hours (id BIGINT, ts DATETIME, PRIMARY KEY (id, ts))"
                f" PARTITION BY RANGE COLUMNS (ts) ({parts})"
            )
        client.exec_driver_sql(f"INSERT INTO hours VALUES (1, '{h.now - timedelta(hours=3):%Y-%m-%d %H:%M:%S}')")
    h.sql(
        "ALTER TABLE hours SET (ttl_expiration_expression = 'ts + INTERVAL 1 HOUR', ttl_grace = '0 seconds',"
        " ttl_time_zone = 'UTC', ttl_guard = off)"
    )


def test_two_thousand_leaves_cost_what_twenty_cost(h: Harness) -> None:
    if not h.features.partitions:
        pytest.skip("there are no partitions")
    found: list[dict[str, int]] = []
    for count in (SOME, LEAVES):
        _hourly(h, count)
        with counted(h.db) as statements:
            result = h.db.run()
        assert [job.table.partition for job in result.jobs] == ["h0"]
        assert (result.deleted, h.ids("hours")) == (1, [])
        with h.db.catalog.reading() as connection:
            assert len(stored_jobs.recent_jobs(connection, limit=LEAVES)) == len(found) + 1
        found.append({"run": len(statements), **_looks(h)})
        h.sql("DROP TABLE hours")
    some, many = found
    # Those that are passed over are written down five hundred at a time, and a run that takes longer asks more often.
    assert many.pop("run") <= some.pop("run") + LEAVES // 50
    assert {name: many[name] <= some[name] + CHANCE for name in some} == dict.fromkeys(some, True), (some, many)
