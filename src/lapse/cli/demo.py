"""`lapse demo`: the whole story in a few seconds, on a scratch SQLite file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

from lapse.app import Lapse
from lapse.cli import jobs, preview, run, runreport
from lapse.cli.output import Output
from lapse.cli.resultset import ResultFormat, write

ROWS = 40_000
DECLARATION = """CREATE TABLE events (
  id INTEGER PRIMARY KEY,
  name TEXT,
  created_at TEXT
) WITH (
  ttl_expiration_expression = 'created_at + INTERVAL ''30 days''',
  ttl_job_cron = '@hourly'
);"""
# Rows are 0 to 59 days old, so that about half of them have expired.
FILL = f"""INSERT INTO events (name, created_at)
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS - 1})
SELECT 'event ' || i, datetime('now', '-' || (i * 7 % 60) || ' days') FROM n;"""
AGES = """SELECT date(created_at, 'weekday 0') AS week_until, count(*) AS events FROM events GROUP BY 1;"""
SESSIONS = """CREATE TABLE sessions (id INTEGER PRIMARY KEY, user TEXT)
  WITH (ttl_expire_after = '1 second', ttl_hide_expired = 'view');
INSERT INTO sessions (user) VALUES ('ann'), ('bob');"""
COUNT = """SELECT (SELECT count(*) FROM sessions_live) AS alive, (SELECT count(*) FROM sessions) AS stored;"""
LIFETIME_SECONDS = 1.0
NEXT = """lapse sql sqlite:///app.db -c "ALTER TABLE sessions SET (ttl_expire_after = '8 hours')"
lapse sql sqlite:///app.db -c "ALTER TABLE events TTL = created_at + INTERVAL 30 DAY"
lapse preview sqlite:///app.db events
lapse worker sqlite:///app.db"""


def demo() -> None:
    """Show it all in a few seconds: declare, fill, preview, run, look. Uses a scratch file and leaves nothing behind.

    Example: `lapse demo`
    """
    output = Output()
    with scratch_database() as database:
        tell(output, database)


@contextmanager
def scratch_database() -> Iterator[Lapse]:
    with (
        tempfile.TemporaryDirectory(prefix="lapse-demo-") as folder,
        Lapse(f"sqlite:///{Path(folder) / 'demo.db'}") as database,
    ):
        yield database


def tell(output: Output, database: Lapse) -> None:
    _step(output, 1, "Declare when rows expire, in SQL. SQLite knows no such clause; Lapse takes it out and keeps it.")
    _sql(output, database, DECLARATION)
    _step(output, 2, f"Insert {ROWS:,} rows of all ages up to two months.")
    _sql(output, database, FILL)
    _sql(output, database, AGES)
    _step(output, 3, "Preview: what would a run do? Nothing is changed yet.")
    preview.show(output, database.preview("events")[0])
    _step(output, 4, "Run: small batches, each a few milliseconds long, so that no other session has to wait.")
    runreport.show(output, run.execute(database, output, table="events", bar_after=0.0))
    _step(output, 5, "What is left.")
    _sql(output, database, AGES)
    _step(output, 6, "Rows can also live for a while after each write, and vanish from a view on the second.")
    _sql(output, database, SESSIONS)
    _sql(output, database, COUNT)
    output.line("… a second later …", "dim")
    sleep(LIFETIME_SECONDS)
    _sql(output, database, COUNT)
    runreport.show(output, run.execute(database, output, table="sessions"))
    _step(output, 7, "Every run is on record.")
    jobs.show(output, database.history(), as_json=False, empty="")
    output.line()
    output.line("The scratch file is gone again. Next, on a database of yours:", "bold")
    for line in NEXT.splitlines():
        output.line(f"  {line}", "green")


def _step(output: Output, number: int, text: str) -> None:
    output.line()
    output.line(f"{number}. {text}", "bold cyan")


def _sql(output: Output, database: Lapse, text: str) -> None:
    for number, line in enumerate(text.splitlines()):
        output.line(f"{'lapse> ' if number == 0 else '  ...> '}{line}", "green")
    write(output, ResultFormat.TABLE, database.execute(text).stream())
