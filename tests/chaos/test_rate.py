"""One rate for the whole fleet: four processes together delete what the limit says, not four times as much."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from lapse.app import Lapse
from tests.backends import BACKENDS
from tests.chaos.driver import ROOT
from tests.conftest import Servers

LIMIT = 2_000
SECONDS = 10.0
PROCESSES = 4


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "sqlite"])
def test_four_processes_keep_one_rate(servers: Servers, name: str) -> None:
    backend = servers.get(name)
    url = backend.create()
    with Lapse(url) as db:
        for table in range(PROCESSES):
            db.execute(f"CREATE TABLE t{table} (id BIGINT PRIMARY KEY, ts {backend.instant})")
            for start in range(0, 20_000, 1_000):
                rows = ", ".join(f"({i}, '2020-01-01 00:00:00')" for i in range(start, start + 1_000))
                db.execute(f"INSERT INTO t{table} VALUES {rows}")
            at_once = "ttl_guard = 'off', ttl_grace = '0 seconds'"
            db.execute(f"ALTER TABLE t{table} SET (ttl_expiration_expression = 'ts', {at_once})")
        db.set_setting("tidb_ttl_delete_rate_limit", str(LIMIT))
        workers = [_worker(url) for _ in range(PROCESSES)]
        try:
            _wait_until(lambda: _deleted(db) > LIMIT)
            before, started = _deleted(db), time.perf_counter()
            time.sleep(SECONDS)
            after, elapsed = _deleted(db), time.perf_counter() - started
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(20)
    backend.drop(url)
    rate = (after - before) / elapsed
    print(f"{name}: {rate:.0f} rows/s of {LIMIT}")
    assert rate == pytest.approx(LIMIT, rel=0.05)


def _worker(url: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.worker", url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _deleted(db: Lapse) -> int:
    return sum(job.counts.deleted for job in db.history(limit=100))


def _wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the workers did not begin"
        time.sleep(0.1)
