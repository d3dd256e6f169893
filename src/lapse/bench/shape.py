"""What the table of one measurement looks like."""

from __future__ import annotations

from dataclasses import dataclass

KEYS = ("bigint", "uuid", "composite")
MAX_INDEXES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """`scattered` expired rows are spread evenly; otherwise they are the oldest rows, as in a log.

    `indexes` are on columns with random values, which is what makes deleting dear. `expiry_index` is one more.
    `brin` is one over blocks, on the expiry, too, which PostgreSQL has.
    """

    rows: int
    expired_percent: float = 10.0
    key: str = "bigint"
    indexes: int = 1
    expiry_index: bool = False
    brin: bool = False
    scattered: bool = True

    def __post_init__(self) -> None:
        if self.rows < 1 or not 0 <= self.expired_percent <= 100:
            raise ValueError("a shape has rows, and between none and all of them expired")
        if self.key not in KEYS or not 0 <= self.indexes <= MAX_INDEXES:
            raise ValueError(f"keys are {', '.join(KEYS)}; indexes at most {MAX_INDEXES}")

    def __str__(self) -> str:
        indexes = f"{self.indexes} index{'es' if self.indexes != 1 else ''}"
        if self.expiry_index:
            indexes += " and one on the expiry"
        if self.brin:
            indexes += " and BRIN on the expiry"
        order = "scattered" if self.scattered else "the oldest"
        return f"{self.rows:,} rows, {self.expired_percent:g} % expired ({order}), {self.key} key, {indexes}"
