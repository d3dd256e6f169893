"""The commands that look and do, against a real SQLite file."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

import lapse
from lapse._version import __version__
from lapse.model.settings import SETTINGS
from lapse.model.statement import JobAction
from tests.unit.cli.conftest import Cli, Database, process


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version").out == f"lapse {__version__}\n"
    assert "lapse demo" in cli("--help").out


def test_preview_changes_nothing(cli: Cli, declared: Database) -> None:
    before = declared.everything()
    text = cli("preview", declared.url, "events")
    assert text.code == 0
    assert "2 of 4 rows (50%)" in text.out
    [record] = cli("preview", declared.url, "events", "--json").json
    assert (record["table"], record["rows"], record["expired"], record["path"]) == ("events", 4, 2, "physical")
    assert datetime.fromisoformat(record["oldest"]).year == 2020
    assert [row["id"] for row in record["sample"]] == [1, 2]
    assert record["advice"]
    assert declared.everything() == before


def test_run_deletes_and_reports(cli: Cli, declared: Database) -> None:
    ran = cli("run", declared.url)
    assert (ran.code, ran.out) == (0, "events: deleted 2 rows (finished)\n")
    assert declared.query("SELECT id FROM events") == [(3,), (4,)]
    assert cli("run", declared.url).out == "Nothing is due.\n"
    record = cli("run", declared.url, "--table", "events", "--json").json
    assert (record["deleted"], record["complete"], record["failed"], record["skipped"]) == (0, True, False, [])
    assert record["jobs"][0]["status"] == "finished"


def test_run_that_skips_is_incomplete(cli: Cli, declared: Database) -> None:
    assert cli("pause", declared.url, "events").code == 0
    ran = cli("run", declared.url)
    assert ran.code == 3
    assert "skipped, ttl_pause is on" in ran.out
    assert declared.query("SELECT count(*) FROM events") == [(4,)]
    assert cli("resume", declared.url, "events").code == 0
    assert cli("run", declared.url).code == 0


def test_run_that_fails(cli: Cli, declared: Database) -> None:
    declared.run("ALTER TABLE events RENAME COLUMN at TO moved")
    ran = cli("run", declared.url)
    assert ran.code == 1
    assert "failed" in ran.out
    assert declared.query("SELECT count(*) FROM events") == [(4,)]


def test_run_stops_in_time(cli: Cli, declared: Database) -> None:
    declared.run(
        "WITH RECURSIVE n (i) AS (SELECT 5 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
        " INSERT INTO events SELECT i, 'old', '2020-01-01 00:00:00' FROM n"
    )
    limit = "ALTER TABLE events SET (ttl_delete_rate_limit = 10, ttl_delete_batch_size = 10)"
    assert cli("sql", declared.url, "-c", limit).code == 0
    ran = cli("run", declared.url, "--max-runtime", "300ms")
    assert ran.code == 3, ran.out + ran.err
    assert "(stopped; the next run goes on from here)" in ran.out
    left = declared.query("SELECT count(*) FROM events")[0][0]
    assert 2 < left <= 3000
    assert cli("sql", declared.url, "-c", "ALTER TABLE events RESET (ttl_delete_rate_limit)").code == 0
    assert cli("run", declared.url).code == 0
    assert declared.query("SELECT count(*) FROM events") == [(2,)]


def test_status(cli: Cli, declared: Database) -> None:
    [before] = cli("status", declared.url, "--json").json
    assert (before["table"], before["state"], before["last_job"]) == ("events", "grace", None)
    assert before["expires"] == "1 day after at"
    cli("run", declared.url)
    [after] = cli("status", declared.url, "--json").json
    assert (after["state"], after["last_job"]["deleted"]) == ("idle", 2)
    assert datetime.fromisoformat(after["next_run_at"]).tzinfo is not None
    (line,) = [line for line in cli("status", declared.url).out.splitlines() if line.startswith("events")]
    assert [cell.strip() for cell in line.split("│")][:3] == ["events", "on time", "1 day after at"]
    assert line.rstrip().endswith(" 2")


def test_history(cli: Cli, declared: Database) -> None:
    assert cli("history", declared.url).out == "No job has run yet.\n"
    for _ in range(3):
        cli("run", declared.url, "--table", "events")
    assert [job["job_id"] for job in cli("history", declared.url, "--json").json] == [3, 2, 1]
    assert len(cli("history", declared.url, "-n", "1", "-t", "events", "--json").json) == 1
    assert "finished" in cli("history", declared.url).out


def test_jobs_pause_resume_and_cancel(cli: Cli, declared: Database) -> None:
    assert cli("jobs", declared.url).out == "No job is active.\n"
    assert "no active job" in cli("cancel", declared.url, "events").out
    job = _leave_a_job(declared)
    assert [active["job_id"] for active in cli("jobs", declared.url, "--json").json] == [job]
    assert "is paused" in cli("pause", declared.url, "--job", str(job)).out
    assert cli("jobs", declared.url, "--json").json[0]["status"] == "paused"
    assert "is waiting" in cli("resume", declared.url, "--job", str(job)).out
    assert cli("cancel", declared.url, "--job", str(job)).code == 0
    assert cli("jobs", declared.url, "--json").json == []
    assert cli("history", declared.url, "--json").json[0]["status"] == "cancelled"
    assert cli("cancel", declared.url, "--job", str(job)).code == 1
    _leave_a_job(declared)
    assert "cancel" in cli("cancel", declared.url, "events").out


def _leave_a_job(database: Database) -> int:
    """A job that was created and then left alone, as by a worker that was stopped."""
    with lapse.open(database.url) as db:
        worker = db.worker()
        worker.stop()
        [job] = worker.run(db.policy("events")).jobs
        db.control(job.id, JobAction.RESUME)
    return job.id


def test_settings(cli: Cli, declared: Database) -> None:
    assert {each["name"] for each in cli("settings", declared.url, "--json").json} == set(SETTINGS)
    name = "tidb_ttl_delete_rate_limit"
    assert cli("settings", declared.url, name).out == f"{name} = 0\n"
    assert cli("settings", declared.url, name.upper(), "500").out == f"{name} = 500\n"
    assert cli("settings", declared.url, name, "--json").json[0]["value"] == "500"
    assert cli("settings", declared.url, name, "--reset").out == f"{name} = 0\n"
    assert name in cli("settings", declared.url).out


def test_the_environment_has_the_url(cli: Cli, declared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_URL", declared.url)
    assert cli("status", "--json").json[0]["table"] == "events"
    assert cli("preview", "events").code == 0
    assert cli("settings", "tidb_ttl_job_enable", "ON").code == 0
    assert cli("pause", "events").code == 0
    assert cli("resume", "events").code == 0
    assert cli("run", "--table", "events").code == 0
    assert cli("history", "other words").code == 2


def test_doctor(cli: Cli, database: Database) -> None:
    cli("sql", database.url, "-c", "ALTER TABLE events SET (ttl_expire_after = '1 day')")
    assert cli("doctor", database.url).code == 0
    triggers = [name for (name,) in database.query("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]
    database.run(f'DROP TRIGGER "{triggers[0]}"')
    ran = cli("doctor", database.url)
    assert ran.code == 1
    assert "problem" in ran.out
    repaired = cli("doctor", database.url, "--repair", "--json")
    assert repaired.code == 0
    assert [finding["fixed"] for finding in repaired.json if finding["level"] == "problem"] == [True]
    assert cli("doctor", database.url).code == 0


def test_convert(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "schema.sql"
    script.write_text("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP) TTL = `at` + INTERVAL 3 MONTH;\nSELECT  1;\n")
    ran = cli("convert", str(script), "--to", "cockroach")
    assert ran.code == 0
    assert "ttl_expiration_expression" in ran.out
    assert ran.out.endswith("SELECT  1;\n")
    piped = process("convert", "--to", "tidb", "--from", "tidb", stdin=script.read_text())
    assert piped.out == script.read_text()


def test_convert_tells_what_it_left_out(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "schema.sql"
    script.write_text("ALTER TABLE t SET (ttl_expiration_expression = 'at + INTERVAL ''1 day''', ttl_pause = 'on',"
                      " ttl_select_batch_size = 7)")  # fmt: skip
    ran = cli("convert", str(script), "--to", "tidb")
    assert "notice: line 1: ttl_select_batch_size" in ran.err


def test_demo_tells_the_story_and_leaves_nothing(tmp_path: Path) -> None:
    ran = process("demo", TMPDIR=str(tmp_path))
    assert ran.code == 0, ran.err
    for word in ("ttl_expiration_expression", "would delete", "deleted", "finished", "Next"):
        assert word in ran.out
    assert list(tmp_path.iterdir()) == []
    assert "\x1b" not in ran.out


def test_colours_need_a_terminal(declared: Database) -> None:
    assert "\x1b" not in process("status", declared.url).out
    assert "\x1b" not in process("status", "sqlite:///absent.db").err


def test_a_reader_that_leaves_is_no_error(database: Database) -> None:
    command = f"'{sys.executable}' -m lapse sql '{database.url}' --csv -c "
    query = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT i FROM n"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'{command} "{query}" | head -n 1'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "i\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_stops_gracefully(cli: Cli, declared: Database, number: signal.Signals) -> None:
    # A person who asks for the policy to go on does not wait for its grace period.
    assert cli("resume", declared.url, "events").code == 0
    worker = subprocess.Popen(
        [sys.executable, "-m", "lapse", "worker", declared.url, "--log-format", "json"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stderr is not None
    with worker.stderr:
        for line in worker.stderr:
            if "2 rows deleted" in line:
                break
        worker.send_signal(number)
        rest = worker.stderr.read()
    assert worker.wait(30) == 0
    assert "has stopped" in rest
    assert declared.query("SELECT id FROM events") == [(3,), (4,)]
    assert declared.query("SELECT count(*) FROM lapse_worker") == [(0,)]
