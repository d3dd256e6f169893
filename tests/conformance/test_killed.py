"""A worker that is killed between any two statements loses nothing, and what it counted is what is gone."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.conformance.harness import Harness

ROWS, EXPIRED = 400, 300
STEP = 23
"""Statements between two places where the worker is killed."""


def test_a_worker_killed_between_any_two_statements_loses_nothing(h: Harness) -> None:
    """Each killed worker leaves its job behind; after two missed beats the next one goes on with it."""
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 60, ttl_guard = 'off')")
    h.sql("SET GLOBAL tidb_ttl_scan_worker_count = 1")
    h.insert(*((number, h.at(days=-2 if number <= EXPIRED else 2)) for number in range(1, ROWS + 1)))
    survives, kills = 3, 0
    while True:
        command = [sys.executable, "-m", "tests.crashing", h.url, "events", str(survives), h.now.isoformat()]
        done = subprocess.run(command, capture_output=True, check=False)
        live = h.rows(f"SELECT count(*) FROM events WHERE id > {EXPIRED}")[0][0]
        assert live == ROWS - EXPIRED
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        kills += 1
        # Counts commit with the rows: what the catalog says is what is gone.
        left = h.rows(f"SELECT count(*) FROM events WHERE id <= {EXPIRED}")[0][0]
        assert sum(job.counts.deleted for job in h.db.history()) == EXPIRED - left
        h.advance(minutes=1)
        survives += STEP
    assert kills >= 3
    assert h.ids() == list(range(EXPIRED + 1, ROWS + 1))
    assert sum(job.counts.deleted for job in h.db.history()) == EXPIRED
