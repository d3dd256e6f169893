"""The documentation keeps up with the code."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

import lapse
from lapse import ddl
from lapse.app import CONVERT_TARGETS
from lapse.cli import app, main
from lapse.model.blocked import BlockCode
from lapse.model.parameters import PARAMETERS
from lapse.model.settings import SETTINGS
from lapse.model.statement import ControlJob, CreateTable

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["architecture.md", "sql.md", "cli.md", "metrics.md"])
def test_generated_parts_are_up_to_date(name: str) -> None:
    current = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert current == _generator().written(name), "run `make docs`"


def test_the_schema_of_the_file_of_policies_is_up_to_date() -> None:
    current = (ROOT / "docs" / "lapse.schema.json").read_text(encoding="utf-8")
    assert current == _generator().schema(), "run `make docs`"


def test_every_module_has_its_sentence() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not re.search(r"^- `[^`]+`: *$", text, re.MULTILINE)
    for path in (ROOT / "src" / "lapse").rglob("*.py"):
        name = path.parent.name if path.name == "__init__.py" else path.stem
        assert f"{name}`: " in text, path


@pytest.mark.parametrize("name", [*PARAMETERS, *SETTINGS])
def test_every_parameter_and_setting_is_in_the_sql_reference(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", list(BlockCode))
def test_every_reason_for_being_blocked_is_explained(code: BlockCode) -> None:
    (row,) = [
        line for line in (ROOT / "docs" / "safety.md").read_text().splitlines() if line.startswith(f"| `{code}` |")
    ]
    assert ("a person" in row) == code.needs_a_person


def test_every_command_and_option_is_in_the_cli_reference() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert f"## lapse {name}" in text
        for parameter in command.params if not hasattr(command, "commands") else ():
            for flag in parameter.opts if parameter.param_type_name == "option" and parameter.name != "help" else ():
                assert f"`{flag}`" in text


def test_every_command_teaches_with_an_example() -> None:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        if not hasattr(command, "commands"):
            assert f"lapse {name}" in command.help.partition("Example:")[2], name
            assert all(p.help for p in command.params if p.name != "help"), name


def test_every_dialect_is_named() -> None:
    assert "|".join(CONVERT_TARGETS) in (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_build_knows_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "lapse-ttl"
    assert project["scripts"] == {"lapse": "lapse.__main__:main"}


def _blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


TABLES = """
CREATE TABLE sessions (id INTEGER PRIMARY KEY) WITH (ttl_expire_after = '1 day');
CREATE TABLE events (id INTEGER PRIMARY KEY, name TEXT, at DATETIME, ts BIGINT, created_at DATETIME, created BIGINT);
ALTER TABLE events TTL = at + INTERVAL 1 DAY;
"""


@pytest.mark.parametrize("document", ["docs/sql.md", "README.md"])
def test_statements_of_the_documents_run(document: str) -> None:
    for block in _blocks(document, "sql"):
        with lapse.open("sqlite://") as db:
            db.execute(TABLES)
            for statement in ddl.parse(block, "sqlite"):
                if isinstance(statement, CreateTable):
                    db.execute(f"DROP TABLE IF EXISTS {statement.table}")
                if isinstance(statement, ControlJob):
                    # The jobs of the examples do not exist: that they are understood is enough.
                    continue
                with db.session() as session:
                    session.execute(statement)


def test_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with lapse.open("sqlite:///app.db") as db:
        db.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, name TEXT, created_at TEXT)")
        db.execute("INSERT INTO events VALUES (1, 'old', '2020-01-01 00:00:00')")
        db.execute("ALTER TABLE events TTL = created_at + INTERVAL 30 DAY")
    for block in _blocks("README.md", "python"):
        exec(block, {})
    with lapse.connect("sqlite:///app.db") as connection:
        assert connection.execute("SELECT name FROM events").fetchall() == [("login",)]


def _typed(block: str) -> list[list[str]]:
    """The commands behind `$`, over as many lines as their quotes take."""
    found, text = [], ""
    for line in block.splitlines():
        if not text and not line.startswith("$ "):
            continue
        text = f"{text}\n{line}" if text else line[2:]
        try:
            found.append(shlex.split(text, comments=True))
        except ValueError:
            continue
        text = ""
    return found


def test_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_URL", "sqlite:///app.db")
    ran = []
    for block in _blocks("README.md", "console"):
        for words in _typed(block):
            if words[0] == "lapse" and words[1] != "worker":
                assert main(words[1:]) == 0, words
                ran.append(words[1])
    assert ran == ["sql", "sql", "preview", "run", "status"]
    said = capsys.readouterr().out
    for line in (
        "3 rows affected",
        "would delete  2 of 3 rows (67%)",
        "events: deleted 2 rows (finished)",
        "│ on time │",
    ):
        assert line in said
        assert line in (ROOT / "README.md").read_text(encoding="utf-8")
