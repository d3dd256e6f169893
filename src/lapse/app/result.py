"""What a statement gives back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """`columns` is empty for a statement that returns no rows; `rowcount` is -1 where the driver does not say."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    rowcount: int = -1
    notices: tuple[str, ...] = ()

    def stream(self) -> Stream:
        return Stream(columns=self.columns, rows=iter(self.rows), rowcount=self.rowcount, notices=self.notices)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """The same, with rows that are fetched as they are asked for; read them before the next statement runs."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]
    rowcount: int
    notices: tuple[str, ...] = ()
