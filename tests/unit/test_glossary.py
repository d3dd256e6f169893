"""The glossary: one word for each thing, in documentation, help, settings, metrics and messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.model.blocked import BlockCode
from lapse.runner.promise import Health

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
UNUSED = re.compile(
    r"\b(knobs?|tunables?|disarmed|mend(s|ed|ing)?|unable|obstacles?|somebody|nobody|whoever|everybody|reckon(s|ed)?|"
    r"glanced?|heed(s|ed)?|silent since|alive since)\b",
    re.IGNORECASE,
)
HISTORY = {"CHANGELOG.md"}
"""Tells what things were called."""


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [page for page in found if page.name not in HISTORY and page != GLOSSARY]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_pages_use_the_words_of_the_glossary(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if UNUSED.search(line)] == []


def told(tree: ast.AST) -> Iterator[ast.Constant]:
    """Texts that may reach a user: every constant but those that stand alone, as docstrings do."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node


def test_messages_use_the_words_of_the_glossary() -> None:
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in told(ast.parse(path.read_text())):
            text = str(node.value)
            if " " in text and UNUSED.search(text):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text}")
    assert found == []


def words() -> list[str]:
    table = GLOSSARY.read_text().split("## Words that are not used")[0]
    return re.findall(r"^\| ([a-z ]+) \| [A-Z`]", table, re.MULTILINE)


def test_the_glossary_has_each_word_once_in_order() -> None:
    assert len(words()) > 30
    assert words() == sorted(set(words()))


def test_states_are_in_the_glossary() -> None:
    text = GLOSSARY.read_text()
    assert all(f"`{health}`" in text for health in Health)
    assert all(BlockCode(code) for code in ("table_gone", "privilege"))
