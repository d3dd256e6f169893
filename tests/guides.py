"""The blocks of the guides that are meant for one server, as tests run them there."""

from __future__ import annotations

import re
from pathlib import Path

_GUIDES = Path(__file__).parents[1] / "docs" / "guides"


def blocks(guide: str, language: str) -> list[str]:
    text = (_GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found, f"{guide} has no block of {language}"
    return found


def guides_with(language: str) -> set[str]:
    return {path.stem for path in _GUIDES.glob("*.md") if f"```{language}\n" in path.read_text(encoding="utf-8")}
