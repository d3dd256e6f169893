"""The same file names in every engine's folder, and a page that walks through adding one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lapse.engines.base import Engine

ROOT = Path(__file__).parents[3]
ENGINES = ROOT / "src" / "lapse" / "engines"
PAGE = ROOT / "docs" / "add-an-engine.md"
FOLDERS = ("mysql", "postgres", "sqlite")
EVERYWHERE = frozenset(
    "engine session errors names inspect times expression condition checks managed install paths split delete "
    "references forecast consequences advice".split()
)
"""What every engine has; partitions, privileges, gauges and zones only where the database has them."""

METHODS = (
    "describe check install uninstall missing_parts now stopwatch arm check_armed table_id translate condition "
    "choose_path split deleter"
).split()


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_engine_has_the_same_files(folder: str) -> None:
    present = {path.stem for path in (ENGINES / folder).glob("*.py")}
    assert EVERYWHERE - present == set()


def test_there_is_no_other_engine() -> None:
    assert {path.parent.name for path in ENGINES.glob("*/engine.py")} == set(FOLDERS)


def test_the_page_names_files_that_exist() -> None:
    table = PAGE.read_text().split("## 2.")[1].split("## 3.")[0]
    named = set(re.findall(r"`(\w+)\.py`", table)) - {"test_layout"}
    assert named >= EVERYWHERE
    present = {path.stem for folder in FOLDERS for path in (ENGINES / folder).glob("*.py")}
    assert named - present == set()


def test_the_page_names_methods_that_exist() -> None:
    text = PAGE.read_text()
    for method in METHODS:
        assert f"`{method}`" in text
        assert hasattr(Engine, method)
