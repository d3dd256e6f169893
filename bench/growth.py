"""How time grows: the exponent of a power law through the medians. 1 means twice the rows take twice the time."""

from __future__ import annotations

import math
from collections.abc import Sequence


def fitted_exponent(points: Sequence[tuple[float, float]]) -> float:
    """Least squares on logarithms; NaN where there are fewer than two sizes."""
    xs = [math.log(size) for size, _ in points]
    ys = [math.log(seconds) for _, seconds in points]
    if len(set(xs)) < 2:
        return float("nan")
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - middle_x) ** 2 for x in xs)
