"""What the commands print: short, complete, and the same for people and programs."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli, Database, process


def test_the_bare_command_shows_its_help(cli: Cli) -> None:
    for arguments in ((), ("kv",)):
        ran = cli(*arguments)
        assert (ran.code, ran.err) == (0, "")
        assert "Usage: lapse" in ran.out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("run", "URL", "--table", "evnts"), "did you mean events?"),
        (("preview", "URL", "evnts"), "did you mean events?"),
        (("preview", "URL", "Evnts", "--after", "1 day"), "did you mean events?"),
        (("pause", "URL", "event"), "did you mean events?"),
        (("preview", "URL", "events", "--column", "att", "--after", "1 day"), "did you mean at?"),
        (("settings", "URL", "lapse_mod"), "did you mean lapse_mode?"),
        (("settings", "URL", "tidb_ttl_jobenable"), "did you mean tidb_ttl_job_enable?"),
        (("sql", "URL", "-c", "SET GLOBAL lapse_mod = 'x'"), "did you mean lapse_mode?"),
        (("sql", "URL", "-c", "ALTER TABLE evnts SET (ttl_pause = 'on')"), "did you mean events?"),
        (("sql", "URL", "-c", "ALTER TABLE events SET (ttl_paus = 'on')"), "did you mean ttl_pause?"),
        (("sql", "URL", "-c", "ALTER TABLE events TTL = nam + INTERVAL 1 DAY"), "did you mean name?"),
        (("sql", "URL", "-c", "ALTER TABLE events SET (ttl_expiration_expression = 'nam')"), "did you mean name?"),
        (("stats", "URL"), "Did you mean 'status'"),
        (("run", "URL", "--max-runtme", "10s"), "--max-runtime"),
    ],
)
def test_near_names_are_suggested(cli: Cli, declared: Database, arguments: tuple[str, ...], hint: str) -> None:
    ran = cli(*(declared.url if word == "URL" else word for word in arguments))
    assert ran.code in (1, 2)
    assert hint in ran.err
    assert cli("settings", declared.url, "tidb_ttl_nonsense").err.count("did you mean") == 0


def test_a_password_that_is_a_word_leaves_the_words_alone(cli: Cli) -> None:
    assert cli("pause", "postgresql://me:table@127.0.0.1:1/db").err.startswith("error: which table?")
    refused = cli("status", "postgresql://me:connection@127.0.0.1:1/db").err
    assert "me:connection" not in refused


def test_csv_loses_nothing(cli: Cli, declared: Database) -> None:
    query = "SELECT '' AS a, NULL AS b, 'x,\"y\"' AS c, x'00ff' AS d, ' pad ' AS e, 'two' || char(10) || 'lines' AS f"
    out = cli("sql", declared.url, "--csv", "-c", query).out
    assert out == 'a,b,c,d,e,f\n"",,"x,""y""",\\x00ff," pad ","two\nlines"\n'
    assert list(csv.reader(io.StringIO(out)))[1] == ["", "", 'x,"y"', "\\x00ff", " pad ", "two\nlines"]


def test_json_is_always_json(cli: Cli, declared: Database) -> None:
    out = cli("sql", declared.url, "--json", "-c", "SELECT 9e999 AS x, -9e999 AS y, 1.5 AS z").out
    assert json.loads(out, parse_constant=pytest.fail) == [{"x": "Infinity", "y": "-Infinity", "z": 1.5}]
    assert cli("sql", declared.url, "--json", "-c", "SELECT 1 AS x WHERE 0").json == []


NUMBERS = (
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i, 'row ' || i AS t FROM n"
)


def test_large_results_are_written_as_they_come(declared: Database) -> None:
    ran = process("sql", declared.url, "-c", NUMBERS.format(60_000))
    lines = ran.out.splitlines()
    assert lines[:3] == ["  i | t", "----+--------", "  1 | row 1"]
    assert lines[-2:] == ["60000 | row 60000", "(60,000 rows)"]
    assert len(json.loads(process("sql", declared.url, "--json", "-c", NUMBERS.format(2_000)).out)) == 2_000
    assert len(process("sql", declared.url, "--csv", "-c", NUMBERS.format(2_000)).out.splitlines()) == 2_001


def _tables(declared: Database, cli: Cli, count: int) -> None:
    for number in range(count):
        declared.run(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, at TEXT)")
        assert cli("sql", declared.url, "-c", f"ALTER TABLE t{number} TTL = at + INTERVAL 1 DAY").code == 0


def test_a_run_has_a_line_per_table_that_did_something_and_one_for_the_rest(cli: Cli, declared: Database) -> None:
    _tables(declared, cli, 4)
    assert cli("pause", declared.url, "t3").code == 0
    ran = cli("run", declared.url)
    assert ran.out.splitlines() == [
        "events: deleted 2 rows (finished)",
        "3 tables had nothing to delete.",
        "t3: skipped, ttl_pause is on",
    ]
    assert ran.code == 3
    assert cli("run", declared.url, "--table", "t0").out == "t0: deleted 0 rows (finished)\n"


def test_status_fits_a_terminal(cli: Cli, declared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    declared.run("CREATE TABLE password_resets (id INTEGER PRIMARY KEY, created_at TEXT)")
    declare = "ALTER TABLE password_resets TTL = created_at + INTERVAL 90 DAY"
    assert cli("sql", declared.url, "-c", declare).code == 0
    assert cli("run", declared.url).code == 0
    out = cli("status", declared.url).out
    rows = [line for line in out.splitlines() if "│" in line]
    assert len(rows) == 2, out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "90 days after created_at" in rows[1]
    assert cli("pause", declared.url, "events").code == 0
    assert "events: ttl_pause is on" in cli("status", declared.url).out


def test_apply_says_what_it_applied(cli: Cli, database: Database, tmp_path: Path) -> None:
    file = tmp_path / "lapse.toml"
    file.write_text('[tables.events]\ncolumn = "at"\nafter = "30 days"\n')
    ran = cli("apply", database.url, "-f", str(file))
    assert ran.out.splitlines()[-1] == "Applied: 1 created."
    assert cli("apply", database.url, "-f", str(file)).out == "Nothing to apply: every policy is as the file says.\n"
    file.write_text('[tables.evnts]\ncolumn = "at"\nafter = "30 days"\n')
    assert "did you mean events?" in cli("plan", database.url, "-f", str(file)).out


def test_lint_without_a_database(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "lapse.toml"
    file.write_text(
        '[environments.production]\nurl = "$NO_SUCH_VARIABLE"\n[tables.events]\nttl_expire_after = "1 day"\n'
    )
    ran = cli("lint", "-f", str(file))
    assert (ran.code, "1 policy" in ran.out) == (0, True)
    assert "no database" in ran.err
    file.write_text('[tables.events]\nttl_expire_aftr = "1 day"\n')
    ran = cli("lint", "-f", str(file))
    assert ran.code == 2
    assert f"{file}:2:1" in ran.err
    assert "did you mean ttl_expire_after?" in ran.err


def test_environments_merge_into_table_entries(cli: Cli, database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE logs (id INTEGER PRIMARY KEY, at TEXT)")
    file = tmp_path / "lapse.toml"
    file.write_text(f"""
[tables.events]
column = "at"
after = "30 days"
ttl_delete_rate_limit = 100
[tables.logs]
ttl_expire_after = "1 day"
ttl_delete_rate_limit = 100
[environments.staging]
url = "{database.url}"
[environments.staging.tables.events]
after = "2 days"
[environments.staging.tables.logs]
exclude = "staging keeps them"
""")
    plan = cli("plan", "-f", str(file), "--json").json
    (change,) = plan["changes"]
    assert change["changed"]["after"]["after"] == "2 days"
    assert change["changed"]["column"]["after"] == "at"
    assert change["changed"]["ttl_delete_rate_limit"]["after"] == "100"


def test_resuming_what_cannot_be_resumed_changes_nothing(cli: Cli, declared: Database) -> None:
    assert cli("pause", declared.url, "events").code == 0
    declared.run("ALTER TABLE events RENAME COLUMN at TO moved")
    before = declared.everything()
    ran = cli("resume", declared.url, "events")
    assert ran.code == 1
    assert declared.everything() == before
    assert "ttl_pause is on" in cli("status", declared.url).out


def test_the_same_value_again_is_no_new_version(cli: Cli, declared: Database) -> None:
    assert cli("sql", declared.url, "-c", "ALTER TABLE events SET (ttl_delete_rate_limit = 7)").code == 0
    (first,) = cli("status", declared.url, "--json").json
    assert cli("sql", declared.url, "-c", "ALTER TABLE events SET (ttl_delete_rate_limit = 7)").code == 0
    (second,) = cli("status", declared.url, "--json").json
    assert first["policy_version"] == second["policy_version"]


def test_history_fits_a_terminal(cli: Cli, declared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times and numbers stay whole, and reasons stand below."""
    cli("run", declared.url)
    declared.run("ALTER TABLE events RENAME TO elsewhere")
    cli("run", declared.url, "--table", "events")
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("history", declared.url).out.splitlines()
    assert all(len(line) <= 80 for line in lines[:4])
    assert all(re.search(r"│ [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d │ +\d+\.\d s │", line) for line in lines[2:4])
    assert lines[4].startswith("job 2: ")


@pytest.mark.parametrize("arguments", [(), ("run",), ("preview",), ("worker",)])
def test_a_flag_shows_no_type(cli: Cli, arguments: tuple[str, ...]) -> None:
    text = cli(*arguments, "--help").out
    assert "--help" in text
    assert "<bool>" not in text
