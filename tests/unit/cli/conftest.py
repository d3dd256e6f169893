"""The command line, run inside this process or as a process of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lapse.cli import main


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LAPSE_URL", "COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Ran(code=code, out=captured.out, err=captured.err)

    return run


def process(*arguments: str, stdin: str | None = None, **environment: str) -> Ran:
    """The command as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "lapse", *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=60,
        check=False,
    )
    return Ran(code=done.returncode, out=done.stdout, err=done.stderr)


@dataclass(frozen=True, slots=True)
class Database:
    """An SQLite file with a table `events`: two rows that expired long ago, one that has not, one that never does."""

    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(sql).fetchall()

    def run(self, sql: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(sql)

    def everything(self) -> str:
        with closing(sqlite3.connect(self.path)) as connection:
            return "\n".join(connection.iterdump())


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(tmp_path / "app.db")
    database.run(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, name TEXT, at TEXT);"
        "INSERT INTO events VALUES (1, 'old', '2020-01-01 00:00:00'), (2, 'old', '2021-01-01 00:00:00'),"
        " (3, 'new', '2999-01-01 00:00:00'), (4, 'never', NULL);"
    )
    return database


@pytest.fixture
def declared(database: Database, cli: Cli) -> Database:
    """The same, with a policy on `events`."""
    ran = cli("sql", database.url, "-c", "ALTER TABLE events TTL = `at` + INTERVAL 1 DAY")
    assert ran.code == 0, ran.err
    return database
