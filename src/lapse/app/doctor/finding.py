"""What the doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    ADVICE = "advice"
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """`fix` is what to run; `fixed` says that `--repair` has done it."""

    level: Level
    subject: str
    text: str
    fix: str | None = None
    fixed: bool = False
