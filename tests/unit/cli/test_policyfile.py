"""Policies as code on the command line: exit codes for CI, and a file that is written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli, Database


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_from_nothing_to_a_checked_file(cli: Cli, database: Database) -> None:
    assert cli("init", database.url).code == 0
    text = Path("lapse.toml").read_text(encoding="utf-8")
    assert "# [tables.events]" in text
    assert cli("init", database.url).code == 2
    assert cli("init", database.url, "--force").code == 0
    assert cli("init", database.url, "--file", "-").out == text
    assert cli("plan", database.url).code == 0
    linted = cli("lint", database.url)
    assert (linted.code, "neither a policy nor a reason" in linted.out) == (1, True)
    Path("lapse.toml").write_text("[tables.events]\ncolumn = 'at'\nafter = '1 day'\n", encoding="utf-8")
    assert cli("lint", database.url).code == 0
    planned = cli("plan", database.url)
    assert planned.code == 3
    assert "+ events (lapse.toml:1)" in planned.out
    assert "first run would delete 2 of 4 rows" in planned.out
    assert cli("apply", database.url).code == 0
    assert cli("plan", database.url).code == 0
    assert cli("apply", database.url).out == "Nothing to apply: every policy is as the file says.\n"
    assert cli("run", database.url).out == "events: deleted 2 rows (finished)\n"


def test_environments_bring_their_url(cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("lapse.toml").write_text(
        "[environments.prod]\nurl = '$PROD_URL'\n[tables.events]\nttl_expire_after = '1 day'\n", encoding="utf-8"
    )
    assert cli("plan", "--env", "prod").code == 2
    monkeypatch.setenv("PROD_URL", database.url)
    record = cli("plan", "-e", "prod", "--json").json
    (change,) = record["changes"]
    assert (change["action"], change["table"], change["first_run"]) == ("create", "events", None)
    assert change["statement"] == "ALTER TABLE events SET (ttl_expire_after = '1 day')"
    assert cli("apply", "--json").json == record
    assert cli("plan", "--json").json["unchanged"] == 1


def test_an_entry_that_cannot_be_done_changes_nothing(cli: Cli, database: Database) -> None:
    Path("lapse.toml").write_text(
        "[tables.events]\nttl_expire_after = '1 day'\n[tables.nope]\nttl_expire_after = '1 day'\n", encoding="utf-8"
    )
    before = database.everything()
    assert cli("plan", database.url).code == 1
    applied = cli("apply", database.url)
    assert (applied.code, "there is no table nope" in applied.out) == (1, True)
    assert database.everything() == before
    assert cli("lint", database.url, "--json").json[0]["table"] == "nope"


def test_a_mistake_in_the_file_is_usage(cli: Cli, database: Database) -> None:
    Path("lapse.toml").write_text("[tables.events]\nttl_expire_after = 30\n", encoding="utf-8")
    ran = cli("plan", database.url)
    assert ran.code == 2
    assert "lapse.toml:2:1: " in ran.err
    assert cli("plan", database.url, "-f", "missing.toml").code == 1
