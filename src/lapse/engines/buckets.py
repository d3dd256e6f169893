"""Many cutoffs in one pass over the rows: each row is put into the bucket of the first cutoff it has expired at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate


def bucket(conditions: Sequence[str]) -> str:
    """SQL for the number of the first condition that is true, or how many there are if none is.

    The conditions are those of ascending cutoffs, so a row that meets one meets all later ones, and bisection finds
    the first with few comparisons.
    """
    return _between(conditions, 0, len(conditions))


def _between(conditions: Sequence[str], low: int, high: int) -> str:
    if low == high:
        return str(low)
    middle = (low + high) // 2
    before, after = _between(conditions, low, middle), _between(conditions, middle + 1, high)
    return f"CASE WHEN {conditions[middle]} THEN {before} ELSE {after} END"


def running_totals(found: Iterable[tuple[int, int]], buckets: int) -> tuple[int, ...]:
    """One total per cutoff from (bucket, rows); rows of the last bucket have expired at none of them."""
    counts = [0] * (buckets + 1)
    for number, rows in found:
        counts[number] += rows
    return tuple(accumulate(counts[:buckets]))
