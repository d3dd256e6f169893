"""The one place where a DELETE is put together; it cannot make one without an expiry condition and a bound."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.errors import LapseError


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardedDelete:
    """`condition` is true for expired rows only; `bound` limits how many rows one statement can touch."""

    table: str
    condition: str
    bound: str
    extra: str = ""
    suffix: str = ""

    def __post_init__(self) -> None:
        for name, part in (("table", self.table), ("condition", self.condition), ("bound", self.bound)):
            if not part.strip():
                raise LapseError(f"refusing to build a DELETE without its {name}")

    def sql(self) -> str:
        extra = f" AND {self.extra}" if self.extra else ""
        return f"DELETE FROM {self.table} WHERE {self.bound} AND {self.condition}{extra}{self.suffix}"
