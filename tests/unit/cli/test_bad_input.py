"""Bad input gets a clear error, a hint where there is one, the right exit code, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli, Database

STATEMENTS = {
    "unknown parameter": ("ALTER TABLE events SET (ttl_expire_aftr = '1 day')", 2, "ttl_expire_aftr"),
    "bad interval": ("ALTER TABLE events SET (ttl_expire_after = 'soon')", 2, "'soon'"),
    "negative duration": ("ALTER TABLE events SET (ttl_expire_after = '-3 days')", 2, "negative"),
    "duration without a unit": ("ALTER TABLE events SET (ttl_expire_after = '30')", 2, "unit"),
    "zero duration": ("ALTER TABLE events SET (ttl_expire_after = '0 days')", 2, "longer than zero"),
    "bad cron": ("ALTER TABLE events SET (ttl_expire_after = '1 day', ttl_job_cron = 'often')", 2, "cron"),
    "value out of range": (
        "ALTER TABLE events SET (ttl_expire_after = '1 day', ttl_delete_batch_size = 0)",
        2,
        "ttl_delete_batch_size",
    ),
    "missing column": ("ALTER TABLE events TTL = nope + INTERVAL 1 DAY", 2, "nope"),
    "missing column in an expression": (
        "ALTER TABLE events SET (ttl_expiration_expression = 'nope + INTERVAL ''1 day''')",
        2,
        "nope",
    ),
    "column without times": ("ALTER TABLE events TTL = name + INTERVAL 1 DAY", 1, "name"),
    "parameter without a policy": ("ALTER TABLE events SET (ttl_pause = 'on')", 1, "ttl_pause"),
    "reset without a policy": ("ALTER TABLE events RESET (ttl)", 1, "no TTL"),
    "contradicting clauses": (
        "CREATE TABLE t (a TEXT, b TEXT) WITH (ttl_expiration_expression = 'b') TTL = a + INTERVAL 1 DAY",
        1,
        "contradict",
    ),
    "second statement in an expression": (
        "ALTER TABLE events SET (ttl_expiration_expression = 'at; DROP TABLE events')",
        2,
        "expression",
    ),
    "unbalanced expression": (
        "ALTER TABLE events SET (ttl_expiration_expression = 'at) OR (1 = 1')",
        2,
        "expression",
    ),
    "subquery in an expression": (
        "ALTER TABLE events SET (ttl_expiration_expression = '(SELECT max(at) FROM events)')",
        2,
        "expression",
    ),
    "temporary table": ("CREATE TEMP TABLE t (a TEXT) WITH (ttl_expire_after = '1 day')", 1, "temporary"),
    "view": ("ALTER TABLE recent SET (ttl_expire_after = '1 day')", 1, "view"),
    "missing table": ("ALTER TABLE nope SET (ttl_expire_after = '1 day')", 1, "nope"),
    "new table without the column": ("CREATE TABLE t (a TEXT) TTL = b + INTERVAL 1 DAY", 2, "b"),
    "bad setting": ("SET GLOBAL tidb_ttl_job_enable = 'maybe'", 2, "tidb_ttl_job_enable"),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_is_refused_and_nothing_changes(name: str, cli: Cli, database: Database) -> None:
    database.run("CREATE VIEW recent AS SELECT * FROM events")
    statement, code, expected = STATEMENTS[name]
    before = database.everything()
    ran = cli("sql", database.url, "-c", statement)
    assert ran.code == code, ran.err
    assert ran.err.startswith("error: ")
    assert expected in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert database.everything() == before


def test_an_unknown_scheme_is_refused_without_its_password(cli: Cli) -> None:
    ran = cli("status", "mongodb://me:s3cret@host/db")
    assert ran.code == 2
    assert "mongodb" in ran.err
    assert "hint: " in ran.err
    assert "s3cret" not in ran.err


@pytest.mark.parametrize("url", ["slatedb:///data", "rocksdb:/data", "rocksdb:data"])
def test_key_value_urls_are_sent_to_kv(cli: Cli, url: str) -> None:
    ran = cli("sql", url, "-c", "SELECT 1")
    assert ran.code == 2
    assert "lapse kv" in ran.err


def test_a_path_is_no_url(cli: Cli) -> None:
    ran = cli("status", "app.db")
    assert ran.code == 2
    assert "sqlite:///app.db" in ran.err


def test_no_url_at_all(cli: Cli) -> None:
    ran = cli("status")
    assert ran.code == 2
    assert "LAPSE_URL" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("preview", "TABLE"),
        ("run",),
        ("worker",),
        ("status",),
        ("jobs",),
        ("history",),
        ("pause", "TABLE"),
        ("resume", "TABLE"),
        ("cancel", "TABLE"),
        ("settings",),
        ("doctor",),
    ],
)
def test_a_missing_file_is_refused_and_not_made(cli: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments
    ran = cli(command, f"sqlite:///{tmp_path / 'absent.db'}", *rest)
    assert ran.code == 1
    assert "no database" in ran.err
    assert not (tmp_path / "absent.db").exists()


def test_sql_makes_a_missing_file(cli: Cli, tmp_path: Path) -> None:
    assert cli("sql", f"sqlite:///{tmp_path / 'fresh.db'}", "-c", "CREATE TABLE t (a)").code == 0
    assert (tmp_path / "fresh.db").exists()


def test_a_file_that_is_no_database(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not a database\n" * 100)
    for command in (["status"], ["sql", "-c", "SELECT * FROM t"], ["run"]):
        ran = cli(command[0], f"sqlite:///{path}", *command[1:])
        assert ran.code == 1
        assert "not a SQLite database" in ran.err
    assert path.read_text().startswith("these are notes")


def test_a_read_only_file(cli: Cli, declared: Database) -> None:
    # A file whose header asks for a newer way of writing may be read but not written, even by root.
    content = bytearray(declared.path.read_bytes())
    content[18] = 9
    declared.path.write_bytes(content)
    before = declared.path.read_bytes()
    for arguments in (
        ("sql", "-c", "ALTER TABLE events SET (ttl_pause = 'on')"),
        ("run",),
        ("pause", "events"),
        ("settings", "tidb_ttl_job_enable", "OFF"),
    ):
        ran = cli(arguments[0], declared.url, *arguments[1:])
        assert ran.code == 1, arguments
        assert "cannot be written" in ran.err
        assert "hint: " in ran.err
    assert cli("status", declared.url).code == 0
    assert cli("preview", declared.url, "events").code == 0
    assert cli("doctor", declared.url).code == 0
    assert declared.path.read_bytes() == before


def test_a_catalog_from_the_future(cli: Cli, declared: Database) -> None:
    declared.run("UPDATE lapse_meta SET value = '999' WHERE name = 'catalog_version'")
    before = declared.everything()
    for arguments in (
        ("status",),
        ("run",),
        ("doctor", "--repair"),
        ("sql", "-c", "ALTER TABLE events SET (ttl_pause = 'on')"),
        ("settings", "tidb_ttl_job_enable", "OFF"),
    ):
        ran = cli(arguments[0], declared.url, *arguments[1:])
        assert ran.code == 1, arguments
        assert "999" in ran.err
        assert "upgrade Lapse" in ran.err
    assert declared.everything() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("sql", "--frobnicate"),
        ("sql", "URL", "-c", "SELECT 1", "-f", "x.sql"),
        ("sql", "URL", "-c", "SELECT 1", "--json", "--csv"),
        ("preview", "URL"),
        ("pause", "URL"),
        ("pause", "URL", "events", "--job", "1"),
        ("history", "URL", "--limit", "0"),
        ("settings", "URL", "--reset"),
        ("settings", "URL", "tidb_ttl_job_enable", "maybe"),
        ("settings", "URL", "tidb_ttl_nope"),
        ("run", "URL", "--max-runtime", "10"),
        ("run", "URL", "--max-runtime", "1 month"),
        ("convert", "--to", "oracle"),
        ("convert",),
    ],
)
def test_usage_errors(cli: Cli, declared: Database, arguments: tuple[str, ...]) -> None:
    before = declared.everything()
    ran = cli(*(declared.url if argument == "URL" else argument for argument in arguments))
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert declared.everything() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("preview", "URL", "nope"),
        ("run", "URL", "--table", "nope"),
        ("history", "URL", "--table", "nope"),
        ("cancel", "URL", "--job", "77"),
        ("sql", "URL", "-f", "/does/not/exist.sql"),
        ("sql", "URL", "-c", "SELEC 1"),
    ],
)
def test_failures(cli: Cli, declared: Database, arguments: tuple[str, ...]) -> None:
    before = declared.everything()
    ran = cli(*(declared.url if argument == "URL" else argument for argument in arguments))
    assert ran.code == 1
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err
    assert declared.everything() == before


@pytest.mark.parametrize(
    ("url", "meant"), [("sqlite://app.db", "sqlite:///app.db"), ("sqlite://data/app.db", "sqlite:///data/app.db")]
)
def test_two_slashes_are_no_file(cli: Cli, url: str, meant: str) -> None:
    """SQLAlchemy takes the name for a host, and the database would be one in memory, gone with the command."""
    ran = cli("sql", url, "-c", "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    assert (ran.code, ran.err) == (2, f"error: {url} names no file\nhint: write {meant}\n")


def test_a_file_of_policies_that_is_not_there(cli: Cli, database: Database, tmp_path: Path) -> None:
    ran = cli("plan", database.url, "-f", str(tmp_path / "lapse.toml"))
    assert ran.code == 1
    assert ran.err.endswith("hint: `lapse init` writes a first one; -f names another\n")


def test_a_text_without_quotes_in_a_file_of_policies(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "lapse.toml"
    file.write_text("[tables.events]\ncolumn = created_at\n", encoding="utf-8")
    ran = cli("lint", "-f", str(file))
    assert (ran.code, ran.err.splitlines()[1]) == (2, 'hint: a text is written in quotes: column = "created_at"')


def test_a_run_without_any_policy_says_so(cli: Cli, database: Database) -> None:
    assert cli("run", database.url).out == "No table has a TTL policy.\n"
