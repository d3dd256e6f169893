"""How fast expired rows go, compared with the ways people use instead: measured, not guessed."""

from __future__ import annotations

from lapse.bench.contenders import STANDARD, Contender, lapse
from lapse.bench.measure import Measurement, Run, compare
from lapse.bench.scratch import measure_here
from lapse.bench.shape import KEYS, Shape
from lapse.bench.tables import BenchTable, table_for

__all__ = [
    "KEYS",
    "STANDARD",
    "BenchTable",
    "Contender",
    "Measurement",
    "Run",
    "Shape",
    "compare",
    "lapse",
    "measure_here",
    "table_for",
]
