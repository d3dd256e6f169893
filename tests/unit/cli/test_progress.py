"""The progress bar and the worker's log, as listeners of a run."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from io import StringIO
from threading import Event, Thread
from typing import Any

import pytest
from rich.console import Console

import lapse
from lapse.cli.logs import LogFormat, configure_logging
from lapse.cli.progress import LockLines, ProgressBar
from lapse.cli.stopping import stop_on_signals
from lapse.engines.sqlite import session as sqlite_session
from lapse.model.table import TableName
from lapse.runner import lockwatch
from lapse.runner.events import Held, HeldKind, LockWait
from lapse.runner.joblog import JobLog
from tests.unit.cli.conftest import Cli, Database


@pytest.fixture
def lapse_log() -> Iterator[logging.Logger]:
    log = logging.getLogger("lapse")
    before: tuple[Any, ...] = (log.handlers[:], log.level, log.propagate)
    yield log
    log.handlers[:], log.level, log.propagate = before


def _run(database: Database, *, shown_after: float) -> str:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None, _environ={"TERM": "xterm"})
    with lapse.open(database.url) as db, ProgressBar(db, console, shown_after=shown_after) as progress:
        db.run("events", listener=progress)
    return screen.getvalue()


def test_a_long_run_shows_a_bar(declared: Database) -> None:
    shown = _run(declared, shown_after=0.0)
    assert "events" in shown
    assert "2 deleted" in shown


def test_a_short_run_shows_nothing(declared: Database) -> None:
    assert _run(declared, shown_after=60.0) == ""


def test_a_run_that_waits_for_a_lock_says_so(cli: Cli, declared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on a terminal, as cron runs it."""
    monkeypatch.setattr(lockwatch, "TOLD_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(sqlite_session, "PATIENT_MS", 100)
    said, tell = Event(), LockLines.locked

    def locked(lines: LockLines, event: LockWait) -> None:
        tell(lines, event)
        said.set()

    def let_go() -> None:
        said.wait(60)
        other.rollback()

    monkeypatch.setattr(LockLines, "locked", locked)
    with closing(sqlite3.connect(declared.path, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        holder = Thread(target=let_go)
        holder.start()
        ran = cli("run", declared.url)
        holder.join()
    assert (ran.code, ran.out) == (0, "events: deleted 2 rows (finished)\n"), ran
    begun, ended = ran.err.splitlines()
    assert re.fullmatch(
        r"notice: the database is locked by another session, since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: waiting for it",
        begun,
    )
    assert ended.startswith("notice: the database is no longer locked, after ")


def test_jobs_are_logged_as_json(
    declared: Database, capsys: pytest.CaptureFixture[str], lapse_log: logging.Logger
) -> None:
    configure_logging(LogFormat.JSON, logging.DEBUG)
    with lapse.open(declared.url) as db:
        db.run("events", listener=JobLog())
    logging.getLogger("lapse.test").warning("cannot reach postgresql://me:s3cret@host/db")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert "job 1 of table events finished, 2 rows deleted" in [line["message"] for line in lines]
    assert {"time", "level", "logger", "message"} == set(lines[0])
    assert lines[-1]["message"] == "cannot reach postgresql://me:***@host/db"


def test_jobs_are_logged_as_text(
    declared: Database, capsys: pytest.CaptureFixture[str], lapse_log: logging.Logger
) -> None:
    configure_logging(LogFormat.TEXT, logging.INFO)
    declared.run("ALTER TABLE events RENAME COLUMN at TO moved")
    with lapse.open(declared.url) as db:
        db.run("events", listener=JobLog())
    last = capsys.readouterr().err.splitlines()[-1]
    assert " warning " in last
    assert "job 1 of table events failed" in last


def test_what_is_held_is_logged(capsys: pytest.CaptureFixture[str], lapse_log: logging.Logger) -> None:
    configure_logging(LogFormat.TEXT, logging.INFO)
    event = Held(table=TableName("events"), kind=HeldKind.ROWS, reason="2 rows stay", fix="lapse preview URL events")
    JobLog().held(event)
    JobLog().released(replace(event, reason="no expired row is held any more"))
    began, over = capsys.readouterr().err.splitlines()
    assert " warning table events: 2 rows stay; lapse preview URL events" in began
    assert " info    table events: no expired row is held any more" in over


def test_the_first_signal_asks_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    asked = Event()
    with stop_on_signals(asked.set):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.wait(10)
        assert signal.getsignal(signal.SIGTERM) is before
    assert signal.getsignal(signal.SIGTERM) is before
