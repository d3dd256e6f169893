"""The import contract of pyproject.toml: imports go down only, and every module has its place."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from lapse.cli import NAMES, build
from lapse.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
ONLY_LISTED = (
    "sqlalchemy",
    "sqlglot",
    "prometheus_client",
    "lapse.app.facade",
    "lapse.ddl",
    "lapse.engines",
    "lapse.kv",
)
"""What `lapse --version` and `lapse --help` load none of."""
NOT_FOR_SQL = (
    "sqlglot",
    "prometheus_client",
    "psycopg",
    "pymysql",
    "starlette",
    "lapse.archive",
    "lapse.ddl.alter",
    "lapse.ddl.convert",
    "lapse.ddl.create",
    "lapse.ddl.expression",
    "lapse.ddl.options",
    "lapse.ddl.render",
    "lapse.kv",
    "lapse.console",
    "lapse.bench",
    "lapse.app.collector",
    "lapse.app.doctor",
    "lapse.app.forecast",
    "lapse.app.observation",
    "lapse.app.policyfile",
    "lapse.app.preview",
    "lapse.engines.mysql",
    "lapse.engines.postgres",
    "lapse.runner.comments",
    "lapse.runner.controller",
    "lapse.runner.jobs",
    "lapse.runner.scheduler",
    "lapse.runner.worker",
    "sqlalchemy.dialects.mysql",
    "sqlalchemy.dialects.postgresql",
)
"""What a statement without TTL on an SQLite file loads none of."""


def test_the_import_contract_holds() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_importing_the_package_loads_no_database_library() -> None:
    code = "import sys, lapse; print([m for m in ('sqlalchemy', 'sqlglot', 'typer', 'rich') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def imported_by(*arguments: str) -> set[str]:
    code = f"import sys; from lapse.cli import main; main({list(arguments)!r}); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_help_loads_nothing_that_commands_work_with(option: str) -> None:
    assert imported_by(option) & set(ONLY_LISTED) == set()


def test_a_plain_statement_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    assert imported_by("sql", url, "-c", "SELECT 1") & set(NOT_FOR_SQL) == set()


def test_commands_are_listed_with_the_first_paragraph_of_their_help() -> None:
    group: Any = typer.main.get_command(build(NAMES))
    told = {name: (inspect.cleandoc(command.help or "").split("\n\n")[0]) for name, command in group.commands.items()}
    assert {name: " ".join(text.split()) for name, text in told.items()} == {
        command.name: command.summary for command in COMMANDS
    }
