"""What a statement gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """`columns` is empty for a statement that returns no rows; `rowcount` is -1 where the driver does not say."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    rowcount: int = -1
    notices: tuple[str, ...] = ()
