"""Where in a TOML text each key stands, which the parser of the standard library does not tell.

Found by looking at lines: a header or `key =`. What stands inside an inline table has the place of that table's key.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

KeyPath = tuple[str, ...]

_HEADER = re.compile(r"\s*\[(?!\[)(?P<path>.+?)\]\s*(?:#.*)?")
_NAME = r"(?:[\w-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*')"
_KEY = re.compile(rf"(?P<indent>\s*)(?P<key>{_NAME}(?:\s*\.\s*{_NAME})*)\s*=")
_LONG_STRING = re.compile(r'"""|\'\'\'')


class Positions:
    """`of` gives line and column, counted from 1, of the key or of the nearest thing around it."""

    def __init__(self, text: str) -> None:
        self._found: dict[KeyPath, tuple[int, int]] = {}
        section: KeyPath = ()
        inside = ""
        for number, line in enumerate(text.splitlines(), 1):
            if not inside:
                section = self._look_at(line, number, section)
            for mark in _LONG_STRING.findall(line):
                inside = "" if inside == mark else inside or mark

    def of(self, path: KeyPath) -> tuple[int, int]:
        while path and path not in self._found:
            path = path[:-1]
        return self._found.get(path, (1, 1))

    def _look_at(self, line: str, number: int, section: KeyPath) -> KeyPath:
        header = _HEADER.fullmatch(line)
        if header is not None:
            section = _path(f"[{header['path']}]")
            self._found.setdefault(section, (number, line.index("[") + 1))
            return section
        key = _KEY.match(line)
        if key is not None:
            path = (*section, *_path(f"{key['key']} = 0"))
            self._found.setdefault(path, (number, len(key["indent"]) + 1))
        return section


def _path(text: str) -> KeyPath:
    """The names in a header or key; the parser itself knows how they are quoted."""
    try:
        found: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return ()
    names: list[str] = []
    while isinstance(found, dict) and found:
        name, found = next(iter(found.items()))
        names.append(name)
    return tuple(names)
