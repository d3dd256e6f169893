"""The prompt of `lapse sql`: statements over several lines, a history, \\q to leave."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from pathlib import Path

from lapse.app import Session
from lapse.cli.failures import report
from lapse.cli.output import Output
from lapse.cli.resultset import ResultFormat, write
from lapse.errors import LapseError

HISTORY_LINES = 1_000
HELP = r"""Statements end with ; and may take several lines. Ctrl-C forgets what was typed, Ctrl-D or \q leaves.

  CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT) WITH (ttl_expiration_expression = 'at + INTERVAL ''30 days''');
  ALTER TABLE events SET (ttl_delete_rate_limit = 1000);   ALTER TABLE events RESET (ttl);
  SHOW CREATE TABLE events;   SHOW SCHEDULES;   SHOW JOBS;   CANCEL JOB 7;
  SET GLOBAL tidb_ttl_job_enable = 'OFF';"""


class Repl:
    def __init__(self, session: Session, output: Output, form: ResultFormat, url: str) -> None:
        self._session = session
        self._output = output
        self._form = form
        self._url = url

    def run(self) -> None:
        _load_history()
        self._output.line(rf"Connected to {self._url}. help for help, \q to leave.", "dim")
        text = ""
        while True:
            try:
                line = input(self._prompt(text))
            except KeyboardInterrupt:
                text = ""
                self._output.line()
                continue
            except EOFError:
                self._output.line()
                break
            if not text and line.strip().rstrip(";").lower() in ("\\q", "quit", "exit"):
                break
            if not text and line.strip().rstrip(";").lower() in ("help", "\\?", "\\h"):
                self._output.line(HELP)
                continue
            text = f"{text}\n{line}" if text else line
            if not text.strip():
                text = ""
            elif self._session.is_complete(text):
                self._execute(text)
                text = ""
        if self._session.in_transaction:
            self._output.notice("the open transaction was rolled back")

    def _prompt(self, text: str) -> str:
        if text:
            return "  ...> "
        return "lapse*> " if self._session.in_transaction else "lapse> "

    def _execute(self, text: str) -> None:
        try:
            for statement in self._session.parse(text):
                result = self._session.stream(statement)
                write(self._output, self._form, result)
                for notice in result.notices:
                    self._output.notice(notice)
        except LapseError as error:
            report(error, sys.argv)
        except KeyboardInterrupt:
            self._output.notice("interrupted")


def history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "lapse" / "sql_history"


def _load_history() -> None:
    """Line editing and history, where Python has them and the home directory can be written."""
    try:
        import readline
    except ImportError:
        return
    path = history_file()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)

    def save() -> None:
        with suppress(OSError):
            readline.write_history_file(path)
            path.chmod(0o600)

    atexit.register(save)
