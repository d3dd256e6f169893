"""SQLite: a file in a temporary directory, in memory where there is room."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.backends.base import Backend, quick_folder


class SqliteBackend(Backend):
    instant = "TIMESTAMP"
    wall_clock = "DATETIME"

    @classmethod
    def why_not(cls) -> str | None:
        return None

    def create(self) -> str:
        folder = Path(tempfile.mkdtemp(prefix="lapse-test-", dir=quick_folder()))
        return f"sqlite:///{folder / 'test.db'}"

    def drop(self, url: str) -> None:
        shutil.rmtree(Path(url.removeprefix("sqlite:///")).parent)

    def veto(self, table: str, condition: str) -> tuple[str, ...]:
        return (f"CREATE TRIGGER keep BEFORE DELETE ON {table} WHEN {condition} BEGIN SELECT RAISE(IGNORE); END",)
