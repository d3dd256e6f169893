"""Contenders on identical fresh data, in shuffled order, several times: what each took and what it left."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lapse.bench.contenders import Contender
from lapse.bench.shape import Shape
from lapse.bench.tables import BenchTable
from lapse.errors import LapseError

Progress = Callable[[str], None]


class WrongRows(LapseError):
    """A contender left expired rows, or took others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One contender, once. `holds` are the seconds that each of its transactions lasted."""

    expired: int
    seconds: float
    holds: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        return self.expired / self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """All rounds of one contender on one shape."""

    shape: Shape
    contender: str
    runs: tuple[Run, ...]

    @property
    def seconds(self) -> float:
        return statistics.median(run.seconds for run in self.runs)

    @property
    def rate(self) -> float:
        """Rows per second, the median of the rounds."""
        return statistics.median(run.rate for run in self.runs)

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest round, as parts of the median."""
        seconds = [run.seconds for run in self.runs]
        return self.seconds / max(seconds), self.seconds / min(seconds)

    def hold(self, quantile: float) -> float:
        """How long a transaction lasts, all rounds together."""
        return percentile([hold for run in self.runs for hold in run.holds], quantile)

    def faster_than(self, other: Measurement) -> float:
        return other.seconds / self.seconds


def percentile(values: Sequence[float], quantile: float) -> float:
    """The value that this share of the others does not exceed; NaN of nothing."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * quantile))]


def compare(
    table: BenchTable,
    plan: Mapping[Shape, Sequence[Contender]],
    *,
    rounds: int,
    progress: Progress = lambda line: None,
    seed: int | None = None,
    repeated: Callable[[Callable[[], Run]], Run] = lambda run: run(),
) -> list[Measurement]:
    """Every contender of every shape once per round. Raises WrongRows when one did not do its work.

    `repeated` may do a run again that something has disturbed.
    """
    chance = random.Random(seed)
    turns = [(shape, contender) for shape, contenders in plan.items() for contender in contenders]
    runs: dict[tuple[Shape, str], list[Run]] = {(shape, contender.name): [] for shape, contender in turns}
    for number in range(1, rounds + 1):
        for shape, contender in chance.sample(turns, len(turns)):
            run = repeated(partial(measure, table, shape, contender))
            runs[shape, contender.name].append(run)
            progress(f"round {number}: {contender.name}: {run.seconds:.3f} s, {run.rate:,.0f} rows/s | {shape}")
    return [Measurement(shape=shape, contender=name, runs=tuple(taken)) for (shape, name), taken in runs.items()]


def measure(table: BenchTable, shape: Shape, contender: Contender) -> Run:
    try:
        table.create(shape)
        before = table.contents()
        timed = contender.run(table)
        after = table.contents()
    finally:
        table.drop()
    if after != before.without_expired():
        raise WrongRows(f"{contender.name} left {after}, which should have been {before.without_expired()}; {shape}")
    return Run(expired=before.expired, seconds=timed.seconds, holds=tuple(timed.holds))
