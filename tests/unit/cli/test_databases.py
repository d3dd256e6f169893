"""Commands on the databases of a file: each answers for itself, and the exit code for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli, Database

TABLES = "[tables.events]\ncolumn = 'at'\nafter = '1 day'\nttl_grace = '0 seconds'\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: Database) -> None:
    """`good` is a database with a table; `gone` is a file that does not exist."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOOD", database.url)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    _write("[databases.good]\nurl = '$GOOD'\n[databases.gone]\nurl = 'sqlite:///${FOLDER}/gone.db'\n")


def _write(databases: str, tables: str = TABLES) -> None:
    Path("lapse.toml").write_text(f"{databases}{tables}", encoding="utf-8")


def test_one_database_that_is_gone_keeps_no_other_waiting(cli: Cli) -> None:
    planned = cli("plan", "--json")
    assert planned.code == 1
    assert len(planned.json["good"]["changes"]) == 1
    assert "there is no database" in planned.json["gone"]["error"]
    assert cli("apply").code == 1
    ran = cli("run", "--config", "lapse.toml")
    assert (ran.code, "events: deleted 2 rows" in ran.out, "error: gone: there is no database" in ran.err) == (
        1, True, True,
    )  # fmt: skip
    assert not Path("gone.db").exists()


def test_the_exit_code_is_of_the_databases_that_were_asked_for(cli: Cli) -> None:
    assert cli("plan", "--database", "good").code == 3
    assert cli("apply", "--database", "good").code == 0
    assert cli("plan", "--database", "good").code == 0
    shown = cli("status", "--database", "good", "--json")
    assert (shown.code, [row["table"] for row in shown.json["good"]]) == (0, ["events"])
    assert cli("run", "--database", "good").code == 0
    assert cli("status", "--config", "lapse.toml").code == 1


def test_a_database_may_have_tables_of_its_own(cli: Cli) -> None:
    _write("[databases.good]\nurl = '$GOOD'\n[databases.good.tables.events]\nafter = '2 days'\n", TABLES)
    (change,) = cli("plan", "--json").json["good"]["changes"]
    assert change["changed"]["after"]["after"] == "2 days"


@pytest.mark.parametrize(
    ("databases", "said"),
    [
        ("[databases.x]\nurl = '$NOT_SET'\n", "the environment variable NOT_SET is not set"),
        ("[databases.x]\nurl = 'postgresql://u:secret@h/x'\n", "a password does not belong in this file"),
        ("[databases.x]\nurl = 'postgresql://u:se$GOOD@h/x'\n", "a password does not belong in this file"),
        ("[databases.x]\nquery = 'SELECT 1'\n", "database x has no url"),
        ("[databases.x]\nurl = '$GOOD'\nquery = 1\n", "query must be a statement"),
        ("[databases.x]\nurl = '$GOOD'\nhosts = ['h']\n", "hosts belongs to a query"),
        ("[databases.x]\nurl = '$GOOD'\nhosts = 'h'\n", "hosts must be a list"),
        ("[databases.x]\nurl = '$GOOD'\nqeury = 'SELECT 1'\n", "qeury is not known here"),
        ("[databases.'x/y']\nurl = '$GOOD'\n", "the name of a database consists of"),
        ("[databases.x]\nurl = '$GOOD'\n[environments.y]\nurl = '$GOOD'\n", "environments or databases, not both"),
    ],
)
def test_a_wrong_file_changes_nothing(cli: Cli, databases: str, said: str) -> None:
    _write(databases)
    for command in (("apply",), ("run", "--config", "lapse.toml"), ("worker", "--config", "lapse.toml")):
        ran = cli(*command)
        assert (ran.code, said in ran.err, "lapse.toml" in ran.err) == (2, True, True), ran.err
        assert "secret" not in ran.err


def test_wrong_words_are_refused(cli: Cli, database: Database) -> None:
    assert "there is no database 'goood' in the file" in cli("run", "--database", "goood").err
    assert cli("run", database.url, "--config", "lapse.toml").code == 2
    assert cli("worker", database.url, "--config", "lapse.toml").code == 2
    assert cli("worker", database.url, "--threads", "2").code == 2
    assert cli("plan", database.url, "--database", "good").code == 2
    _write("", TABLES)
    assert "names no databases" in cli("status", "--config", "lapse.toml").err
    assert "has no [databases.NAME] entries" in cli("plan", "--database", "good").err


def test_files_cannot_be_listed_by_a_query(cli: Cli) -> None:
    _write("[databases.x]\nurl = '$GOOD'\nquery = 'SELECT 1'\n")
    assert "not files" in cli("run", "--database", "x").err
