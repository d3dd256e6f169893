"""The wheel: the same twice, with everything that the program reads at run time; installed where nothing else is."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from lapse import __version__

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def _build(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_wheel_is_whole_and_the_same_twice(tmp_path: Path) -> None:
    wheel = _build(tmp_path / "a")
    again = _build(tmp_path / "b")
    assert wheel.name == f"lapse_ttl-{__version__}-py3-none-any.whl"
    assert hashlib.sha256(wheel.read_bytes()).digest() == hashlib.sha256(again.read_bytes()).digest()
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("lapse/")}
    tracked = subprocess.run(["git", "ls-files", "src/lapse"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert packed >= {name.removeprefix("src/") for name in tracked.stdout.split("\n") if (ROOT / name).is_file()}
    assert not [name for name in packed if name.endswith(".pyc")]


def test_no_hint_names_a_package_that_is_not_published() -> None:
    for path in [*SOURCE.rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        found = re.search(r"(pip|pipx|uvx?|uv pip) (install|run)? ?(--from )?'?lapse", path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found and found[0]}"


@pytest.mark.slow
def test_the_wheel_works_in_a_fresh_environment(tmp_path: Path) -> None:
    built = sorted((ROOT / "dist").glob("*.whl"))
    wheel = built[0] if built else _build(tmp_path)
    venv.create(tmp_path / "fresh", with_pip=True)
    programs = tmp_path / "fresh" / "bin"
    wanted = f"{wheel}[postgres,mysql,console]"
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([programs / "python", "-m", "pip", "install", "-q", "-c", constraints, wanted], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LAPSE_"))}

    def lapse(*words: str) -> str:
        done = subprocess.run(
            [programs / "lapse", *words], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert __version__ in lapse("--version")
    url = "sqlite:///app.db"
    lapse("sql", url, "-c", "CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT) TTL = at + INTERVAL 1 DAY")
    lapse("sql", url, "-c", "INSERT INTO t (at) VALUES ('2020-01-01')")
    assert "deleted 1 row" in lapse("run", url)
    lapse("demo")
