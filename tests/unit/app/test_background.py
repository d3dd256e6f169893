"""A worker inside an application: it works, stops with the application, and leaves nothing at work."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from threading import enumerate as threads
from time import monotonic, sleep

import pytest

import lapse
from lapse.errors import UsageError
from tests.guides import blocks

TABLE = (
    "CREATE TABLE events (id INTEGER PRIMARY KEY, ts TEXT) WITH (ttl_expiration_expression = 'ts', ttl_grace = '0s')"
)
DRIVERS = {
    "the application runs": "",
    "fastapi": "from starlette.testclient import TestClient\nwith TestClient(app): wait()",
    "flask": "wait()",
    "celery": "from celery.signals import beat_init\nbeat_init.send(sender=None)\nwait()",
    "apscheduler": "scheduler.add_job(expire_rows)\nscheduler.start()\nwait()\nscheduler.shutdown()",
}
WAIT = """
import sqlite3, time

def wait():
    until = time.monotonic() + 20
    while left():
        assert time.monotonic() < until, "no row was deleted"
        time.sleep(0.05)

def left():
    with sqlite3.connect("app.db", timeout=20) as connection:
        return connection.execute("SELECT count(*) FROM events WHERE ts < '2100'").fetchone()[0]
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    with lapse.open(url) as db:
        db.execute(TABLE)
        db.execute("INSERT INTO events (ts) VALUES ('2020-01-01'), ('2021-01-01'), ('2999-01-01')")
    return url


def _rows(url: str) -> int:
    with lapse.open(url) as db:
        return int(db.execute("SELECT count(*) FROM events").rows[0][0])


def _wait_for_rows(url: str, count: int) -> None:
    until = monotonic() + 20
    while _rows(url) != count:
        assert monotonic() < until
        sleep(0.05)


def _lapse_threads() -> list[str]:
    return [thread.name for thread in threads() if thread.name.startswith("lapse-")]


def test_it_works_until_the_block_ends_and_leaves_no_thread(url: str) -> None:
    with lapse.open(url).background() as background:
        _wait_for_rows(url, 1)
        assert background.is_running
    assert not background.is_running
    assert _lapse_threads() == []
    background.stop()
    with pytest.raises(UsageError):
        background.start()


def test_the_database_stays_open_for_the_block_that_opened_it(tmp_path: Path) -> None:
    """A scratch database is gone once it is closed."""
    with lapse.open("sqlite://") as db:
        db.execute(TABLE)
        with db.background():
            pass
        assert [stored.table.name for stored in db.policies()] == ["events"]


def test_a_database_that_is_away_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "lapse.worker"),
        lapse.open(f"sqlite:///{tmp_path}/none/app.db").background() as it,
    ):
        sleep(0.1)
        assert it.is_running
    assert "has stopped" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_leaves_the_worker_of_its_parent_alone(url: str) -> None:
    script = (
        "import lapse, os\n"
        f"background = lapse.open({url!r}).background().start()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    assert not background.is_running\n"
        "    background.stop()\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert background.is_running\n"
        "background.stop()\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("name", DRIVERS)
def test_the_guide_runs_and_its_programs_end(name: str, url: str, tmp_path: Path) -> None:
    (block,) = [each for each in blocks("in-process", "python") if name in each]
    block = re.sub(r"^( *)\.\.\. .*$", r"\1wait()", block, flags=re.MULTILINE)
    program = f"{WAIT}\n{block}\n{DRIVERS[name]}\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    with lapse.open(url) as db:
        assert _rows(url) == 1
        assert db.jobs() == []
