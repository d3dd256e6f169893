"""A Django project in a folder of its own, used through `manage.py` as a person does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
PROJECT = Path(__file__).parent / "project"
LONGEST_SECONDS = 240


class Project:
    """`urls` are its databases by alias; `default` must be one of them."""

    def __init__(self, folder: Path, urls: dict[str, str]) -> None:
        self.folder = folder / "project"
        self.urls = urls
        shutil.copytree(PROJECT, self.folder)

    def models(self, step: int | str) -> None:
        shutil.copy(self.folder / "steps" / f"{step}.py", self.folder / "shop" / "models.py")

    def migration(self, name: str) -> str:
        return (self.folder / "shop" / "migrations" / f"{name}.py").read_text()

    def run(self, *arguments: str, code: int = 0, **variables: str) -> str:
        """What the command says; it must end with that exit code."""
        return run_python(
            self.folder, "manage.py", *arguments, code=code, DATABASE_URLS=json.dumps(self.urls), **variables
        )


def run_python(folder: Path, *arguments: str, code: int = 0, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LAPSE_", "DJANGO_"))}
    environment |= {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "default", **variables}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
