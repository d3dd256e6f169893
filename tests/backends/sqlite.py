"""SQLite: a file in a temporary directory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.backends.base import Backend


class SqliteBackend(Backend):
    instant = "TIMESTAMP"
    wall_clock = "DATETIME"

    @classmethod
    def why_not(cls) -> str | None:
        return None

    def create(self) -> str:
        folder = Path(tempfile.mkdtemp(prefix="lapse-test-"))
        return f"sqlite:///{folder / 'test.db'}"

    def drop(self, url: str) -> None:
        shutil.rmtree(Path(url.removeprefix("sqlite:///")).parent)
