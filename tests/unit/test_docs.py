"""The documentation keeps up with the code."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

from lapse.app import CONVERT_TARGETS
from lapse.cli import app
from lapse.model.knobs import KNOBS
from lapse.model.settings import SETTINGS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["architecture.md", "sql.md", "cli.md"])
def test_generated_parts_are_up_to_date(name: str) -> None:
    current = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert current == _generator().written(name), "run `make docs`"


def test_every_module_has_its_sentence() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not re.search(r"^- `[^`]+`: *$", text, re.MULTILINE)
    for path in (ROOT / "src" / "lapse").rglob("*.py"):
        name = path.parent.name if path.name == "__init__.py" else path.stem
        assert f"{name}`: " in text, path


@pytest.mark.parametrize("name", [*KNOBS, *SETTINGS])
def test_every_parameter_and_setting_is_in_the_sql_reference(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")


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
    assert project["scripts"] == {"lapse": "lapse.cli:main"}
