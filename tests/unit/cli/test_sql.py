"""`lapse sql`: scripts, output forms, notices, and the prompt."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.unit.cli.conftest import Cli, Database, process


def test_table_output(cli: Cli, database: Database) -> None:
    ran = cli("sql", database.url, "-c", "SELECT id, name, at FROM events WHERE id IN (1, 4) ORDER BY id")
    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines()[2:4]] == [
        ["1", "│", "old", "│", "2020-01-01", "00:00:00"],
        ["4", "│", "never", "│", "NULL"],
    ]
    assert "(2 rows)" in ran.out


def test_json_output(cli: Cli, database: Database) -> None:
    ran = cli("sql", database.url, "--json", "-c", "SELECT 1 AS a, NULL AS b, x'00ff' AS c, 2 AS a, 'é[b]' AS d")
    assert ran.json == [{"a": 1, "b": None, "c": "\\x00ff", "a_2": 2, "d": "é[b]"}]


def test_csv_output(cli: Cli, database: Database) -> None:
    ran = cli("sql", database.url, "--csv", "-c", "SELECT 'a,b' AS x, NULL AS y, 1.5 AS z")
    assert ran.out == 'x,y,z\n"a,b",,1.5\n'


def test_only_a_table_says_ok(cli: Cli, database: Database) -> None:
    assert cli("sql", database.url, "-c", "CREATE TABLE t (a)").out == "OK\n"
    assert cli("sql", database.url, "-c", "DELETE FROM events WHERE name = 'old'").out == "2 rows affected\n"
    assert cli("sql", database.url, "--json", "-c", "CREATE TABLE u (a)").out == ""


def test_data_cannot_write_to_the_terminal(cli: Cli, database: Database) -> None:
    ran = cli("sql", database.url, "-c", "SELECT char(27) || '[31m' AS a, '[bold]x[/bold]' AS b")
    assert "\x1b" not in ran.out
    assert "\\x1b[31m" in ran.out
    assert "[bold]x[/bold]" in ran.out


def test_wide_rows_are_not_wrapped_for_programs(cli: Cli, database: Database) -> None:
    assert "x" * 500 in cli("sql", database.url, "-c", f"SELECT '{'x' * 500}' AS a").out


def test_notices_go_to_stderr(cli: Cli, database: Database) -> None:
    ran = cli(
        "sql", database.url, "-c", "ALTER TABLE events SET (ttl_expire_after = '1 day', ttl_range_concurrency = 2)"
    )
    assert ran.code == 0
    assert "notice: ttl_range_concurrency has no effect" in ran.err
    assert "notice" not in ran.out


def test_script_file_and_stdin(cli: Cli, database: Database, tmp_path: Path) -> None:
    script = tmp_path / "schema.sql"
    script.write_text("-- a comment; with a semicolon\nCREATE TABLE t (a TEXT)\n  WITH (ttl_expire_after = '1 day');\n")
    assert cli("sql", database.url, "-f", str(script)).code == 0
    ran = process("sql", database.url, "--csv", stdin="SHOW SCHEDULES;\nSELECT 2 AS n")
    assert ran.code == 0, ran.err
    assert "row-level-ttl-t" in ran.out
    assert ran.out.endswith("n\n2\n")


def test_an_error_in_a_script_names_its_line_and_stops(cli: Cli, database: Database) -> None:
    ran = cli("sql", database.url, "-c", "CREATE TABLE t (a);\n\nINSERT INTO nope VALUES (1);\nCREATE TABLE u (a)")
    assert ran.code == 1
    assert "line 3" in ran.err
    assert database.query("SELECT name FROM sqlite_schema ORDER BY 1") == [("events",), ("t",)]


def test_a_script_that_says_begin_is_all_or_nothing(cli: Cli, database: Database) -> None:
    before = database.everything()
    script = "BEGIN; ALTER TABLE events SET (ttl_expire_after = '1 day'); INSERT INTO nope VALUES (1); COMMIT"
    assert cli("sql", database.url, "-c", script).code == 1
    assert database.everything() == before
    ran = cli("sql", database.url, "-c", "BEGIN; ALTER TABLE events SET (ttl_expire_after = '1 day')")
    assert "COMMIT is missing" in ran.err
    assert database.everything() == before


@pytest.fixture
def terminal(database: Database) -> Iterator[Terminal]:
    opened = Terminal("sql", database.url)
    yield opened
    opened.close()


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        master, slave = pty.openpty()
        environment = os.environ | {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lapse", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            # Tests that run in the background of a shell ignore Ctrl-C, and so would the command.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(slave)
        self._master = master
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, *, interrupt: bool = False) -> None:
        """Wait until the text shows up behind what was expected before.

        With `interrupt`, Ctrl-C is pressed until it does: one that comes in the instant between the prompt and the
        reading of a line is only noticed with the next key.
        """
        deadline = monotonic() + 30
        while text not in self.shown:
            assert monotonic() < deadline, f"{text!r} never came: {self.shown!r}"
            if interrupt and not select.select([self._master], [], [], 0.5)[0]:
                self._process.send_signal(signal.SIGINT)
            if select.select([self._master], [], [], 1)[0]:
                try:
                    self.shown += os.read(self._master, 65536).decode()
                except OSError:
                    # Linux says so when the other end is closed.
                    assert text in self.shown, self.shown
        self.shown = self.shown.split(text, 1)[1]

    def wait(self) -> int:
        return self._process.wait(30)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)


def test_prompt(terminal: Terminal, database: Database, tmp_path: Path) -> None:
    terminal.expect("lapse> ")
    terminal.type("help\n")
    terminal.expect("SHOW CREATE TABLE")
    terminal.expect("lapse> ")
    terminal.type("ALTER TABLE events\n")
    terminal.expect("...> ")
    terminal.type("SET (ttl_expiration_expression = 'at');\n")
    terminal.expect("OK")
    terminal.type("SELEC 1;\n")
    terminal.expect("error: ")
    terminal.type("BEGIN;\n")
    terminal.expect("lapse*> ")
    terminal.type("DELETE FROM events;\n")
    terminal.expect("4 rows affected")
    terminal.type("SELECT 'unfinished\n")
    terminal.expect("...> ")
    terminal.expect("lapse*> ", interrupt=True)
    terminal.type("\\q\n")
    terminal.expect("rolled back")
    assert terminal.wait() == 0
    assert database.query("SELECT count(*) FROM events") == [(4,)]
    assert "ALTER TABLE events" in (tmp_path / "state" / "lapse" / "sql_history").read_text()


def test_end_of_input_leaves_the_prompt(terminal: Terminal) -> None:
    terminal.expect("lapse> ")
    terminal.type("\x04")
    terminal.expect("\n")
    assert terminal.wait() == 0
