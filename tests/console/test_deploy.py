"""The files in deploy/ fit the program they start."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import typer.main

from lapse.cli import app
from lapse.console.guard import OPEN_PATHS
from lapse.console.options import TOKEN_VARIABLE
from tests.tools import required

DEPLOY = Path(__file__).parents[2] / "deploy"


def _text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def test_every_file_is_in_the_readme() -> None:
    listed = set(re.findall(r"^\| \[([^\]]+)\]", _text("README.md"), re.MULTILINE))
    assert listed == {path.name for path in DEPLOY.iterdir()} - {"README.md"}


def test_the_options_they_use_exist() -> None:
    group: Any = typer.main.get_command(app)
    known = {flag for parameter in group.commands["worker"].params for flag in parameter.opts}
    for name in ("lapse-worker.service", "Dockerfile", "kubernetes.yaml"):
        line = next(line for line in _text(name).splitlines() if "--listen" in line)
        assert set(re.findall(r"--[a-z-]+", line)) <= known
        assert TOKEN_VARIABLE in _text(name)
        assert "LAPSE_URL" in _text(name)


def test_probes_ask_what_is_open() -> None:
    assert set(re.findall(r"path: (/\w+)", _text("kubernetes.yaml"))) == OPEN_PATHS
    assert "/healthz" in _text("Dockerfile")


def test_the_unit_is_a_unit(tmp_path: Path) -> None:
    unit = _text("lapse-worker.service").replace("/opt/lapse/bin/lapse", "/bin/true")
    (tmp_path / "lapse-worker.service").write_text(unit)
    done = subprocess.run(
        [required("systemd-analyze"), "verify", "--man=no", str(tmp_path / "lapse-worker.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "lapse-worker" not in done.stderr, done.stderr
