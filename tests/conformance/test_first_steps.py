"""The five minutes of docs/index.md, on every engine, with the commands of the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lapse.cli import main
from tests.conformance.harness import Harness

INDEX = Path(__file__).parents[2] / "docs" / "index.md"
KEEPS_RUNNING = "worker"


def _commands() -> list[list[str]]:
    section = INDEX.read_text(encoding="utf-8").partition("in five minutes")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [shlex.split(line[2:]) for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_from_a_table_to_a_worker(
    h: Harness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, created_at {h.backend.instant})")
    h.sql("INSERT INTO events VALUES (1, '2020-01-01 00:00:00'), (2, '2020-01-02 00:00:00'), (3, NULL)")
    monkeypatch.setenv("LAPSE_URL", h.url)
    commands = _commands()
    assert [words[1] for words in commands] == ["preview", "sql", "run", "status", "history", KEEPS_RUNNING]
    for words in commands:
        if words[1] != KEEPS_RUNNING:
            assert main(words[1:]) == 0, (words, capsys.readouterr())
    assert h.rows("SELECT id FROM events") == [(3,)]
    said = capsys.readouterr().out
    assert "would delete  2 of 3 rows (67%)" in said
    # TiDB's own job, which the server of a test with a real clock runs, tells no exact count.
    assert f"deleted {'' if h.features.own_settings else 'about '}2 rows (finished)" in said
