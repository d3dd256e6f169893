"""The guides are true: on SQLite every block runs, elsewhere every statement is understood; and the site builds."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

import lapse
from lapse import ddl
from lapse.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
RUN = [path for path in sorted(DOCS.rglob("*.md")) if "every block of this page is run by a test" in path.read_text()]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _commands(block: str) -> list[tuple[list[str], int]]:
    """What stands behind `$`, with the exit code that a comment promises."""
    found = []
    for command in re.findall(r"^\$ (.+)$", block, re.MULTILINE):
        code = re.search(r"# exit code (\d+)", command)
        found.append((shlex.split(command, comments=True), int(code[1]) if code else 0))
    return found


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_every_block_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAPSE_URL", "sqlite:///app.db")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    ran = 0
    for language, block in _BLOCK.findall(path.read_text(encoding="utf-8")):
        if language == "sql":
            with lapse.open("sqlite:///app.db") as db:
                db.execute(block)
        elif language == "toml":
            Path("lapse.toml").write_text(block, encoding="utf-8")
        elif language == "console":
            for words, code in _commands(block):
                if words[0] == "lapse":
                    assert main(words[1:]) == code, words
        else:
            continue
        ran += 1
    assert ran >= 3


def test_what_the_guides_say_is_left() -> None:
    assert {path.stem for path in RUN} >= {"quickstart", "policies-as-code", "sessions", "outbox", "gdpr", "per-tenant"}


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_statements_for_other_engines_are_understood(path: Path) -> None:
    for language, block in _BLOCK.findall(path.read_text(encoding="utf-8")):
        dialect = {"postgresql": "postgres", "mysql": "mysql"}.get(language)
        if dialect is not None:
            assert ddl.parse(block, dialect)


def test_python_of_the_guides_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with lapse.open("sqlite:///app.db") as db:
        db.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, ts TEXT) TTL = ts + INTERVAL 30 DAY")
    for name in ("looking-ahead.md", "guides/orm.md"):
        for language, block in _BLOCK.findall((DOCS / name).read_text(encoding="utf-8")):
            if language == "python":
                exec(compile(block, name, "exec", dont_inherit=True), {"__name__": "guide"})
    with lapse.open("sqlite:///orm.db") as db:
        assert [stored.table.name for stored in db.policies()] == ["events"]


def _builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_builds_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    builder = _builder()
    pages = builder.build(tmp_path)
    known = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert {name for names in builder.PAGES.values() for name in names} == known, "every document has its menu entry"
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.search("<h[12] id=", text)
        for target, anchor in re.findall(r'href="([^"#:]*)(?:#([^"]*))?"', text):
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), f"{page.name} links to {target}"
            if anchor:
                assert f'id="{anchor}"' in there.read_text(encoding="utf-8"), f"{page.name} links to {target}#{anchor}"
