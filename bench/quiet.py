"""Measuring beside other work on the same machine: not while it is busy, and again if it became busy meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

from lapse.bench import BenchTable, Contender, Measurement, Shape
from lapse.bench import compare as compare_at_once
from lapse.bench.measure import Progress

Result = TypeVar("Result")

MOST = 0.05
"""Of the machine's processors, how much the work of others may take."""
LOOK_SECONDS = 2.0
PATIENCE_SECONDS = 600.0
"""A machine that is never quiet is measured as it is; the load average in the record tells."""
TRIES = 5
TICKS = os.sysconf("SC_CLK_TCK")
KERNEL = 2
"""The parent of the kernel's own threads: what they do, such as writing to the disk, they do for any process."""
_PARENT, _TIMES = 1, slice(11, 13)
"""In /proc/PID/stat, counted from what follows the name: user and system time. That of children comes all at once when
they end, however long ago it was spent."""


def compare(
    table: BenchTable, plan: Mapping[Shape, Sequence[Contender]], *, rounds: int, progress: Progress
) -> list[Measurement]:
    return compare_at_once(
        table, plan, rounds=rounds, progress=progress, repeated=partial(undisturbed, progress=progress)
    )


def undisturbed(run: Callable[[], Result], progress: Progress) -> Result:
    """The first result that the work of others has not disturbed, or the one that it has disturbed least."""
    found: list[tuple[float, Result]] = []
    while len(found) < TRIES:
        _wait(progress)
        watch = _Watch()
        result = run()
        share = watch.share()
        if share <= MOST:
            return result
        found.append((share, result))
        progress(f"other work took {share:.0%} of the processors: once more")
    return min(found, key=lambda each: each[0])[1]


def _wait(progress: Progress) -> None:
    until, told = monotonic() + PATIENCE_SECONDS, False
    while monotonic() < until:
        watch = _Watch()
        sleep(LOOK_SECONDS)
        if watch.share() <= MOST:
            return
        if not told:
            progress("waiting for other work to end")
            told = True


class _Watch:
    def __init__(self) -> None:
        self._began, self._before = monotonic(), _others()

    def share(self) -> float:
        """Of all processors, since it was made: what processes took that are not of this family."""
        lasted = (monotonic() - self._began) * (os.cpu_count() or 1)
        now = _others()
        return sum(max(0.0, spent - self._before.get(process, 0.0)) for process, spent in now.items()) / lasted


def _others() -> dict[int, float]:
    """Process → its processor time in seconds, without this one, its descendants and the kernel."""
    stats = {
        int(each.name): found for each in Path("/proc").iterdir() if each.name.isdigit() and (found := _stat(each))
    }
    parents = {process: int(found[_PARENT]) for process, found in stats.items()}

    def is_ours(process: int) -> bool:
        while process in parents:
            if process in (os.getpid(), KERNEL):
                return True
            process = parents[process]
        return False

    return {process: sum(map(int, found[_TIMES])) / TICKS for process, found in stats.items() if not is_ours(process)}


def _stat(process: Path) -> list[str]:
    """Nothing of a process that has ended meanwhile. A name may hold spaces and parentheses."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
