"""Where text goes: answers to stdout, everything said about them to stderr; tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 10_000
"""Columns of an output that is no terminal: nothing is wrapped or cut off for programs."""


class Output:
    def __init__(self) -> None:
        self.out = _console(sys.stdout)
        self.err = _console(sys.stderr)

    @property
    def is_terminal(self) -> bool:
        return self.out.is_terminal

    def line(self, text: str = "", style: str | None = None) -> None:
        self.out.print(printable(text), style=style, soft_wrap=True)

    @property
    def encoding(self) -> str:
        return getattr(self.out.file, "encoding", None) or "utf-8"

    def raw(self, text: str) -> None:
        self.out.file.write(text)

    def json(self, value: object) -> None:
        self.raw(as_json(value) + "\n")

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        right: Sequence[str] = (),
        whole: Sequence[str] = (),
        title: str = "",
    ) -> None:
        """`right` columns have numbers, `whole` ones are not wrapped."""
        table = Table(title=title or None, title_justify="left", header_style="bold", show_edge=False, pad_edge=False)
        for column in columns:
            table.add_column(
                printable(column),
                justify="right" if column in right else "left",
                overflow="fold",
                no_wrap=column in whole,
            )
        for row in rows:
            table.add_row(*(cell(value) for value in row))
        self.out.print(table)

    def notice(self, text: str) -> None:
        self.problem("notice", text, "yellow")

    def hint(self, text: str) -> None:
        self.problem("hint", text, "cyan")

    def problem(self, word: str, text: str, style: str = "bold red") -> None:
        self.err.print(Text.assemble((f"{word}: ", style), printable(text)), soft_wrap=True)


def _console(file: TextIO) -> Console:
    # Markup is off: text of the user's may have brackets in it. rich itself obeys NO_COLOR and TERM=dumb.
    width = None if file.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(file=file, width=width, markup=False, highlight=False, emoji=False)


def printable(text: str) -> str:
    """Control characters shown, not sent: data must not be able to write to the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def cell(value: object) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    return value if isinstance(value, Text) else Text(printable(plain(value)))


def plain(value: object) -> str:
    """One value as text, of which nothing is lost; what has parts is JSON."""
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list | tuple):
        return json.dumps(_finite(value), ensure_ascii=False, default=json_value)
    return str(value)


def as_json(value: object) -> str:
    """Valid whatever is in it: NaN and infinity are texts, and what the output has no character for is escaped."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False, default=json_value, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(_finite(value), indent=2, default=json_value, allow_nan=False)
    return text


def _finite(value: object) -> object:
    match value:
        case float() if not isfinite(value):
            return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, "NaN")
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value


def moment(value: datetime | None) -> str:
    """An instant as people read it."""
    if value is None:
        return "-"
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if value.tzinfo else str(value)


def json_value(value: Any) -> object:
    """What JSON has no type for: ISO 8601 for times, `\\x…` for bytes, text for the rest."""
    return value.isoformat() if hasattr(value, "isoformat") else plain(value)


def size(count: int | None) -> str:
    if count is None:
        return "unknown"
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:,.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"
        amount /= 1024
    raise AssertionError


def rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def duration(seconds: float) -> str:
    """A length of time as people say it: one unit, two where it helps."""
    if seconds < 1:
        return "less than a second"
    for unit, name, next_unit, next_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit:
            whole, rest = divmod(int(seconds), unit)
            return f"{whole} {name}" + (f" {rest // next_unit} {next_name}" if rest // next_unit else "")
    return f"{seconds:.0f} s"
