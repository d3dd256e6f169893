"""MySQL's client on a processor that other work fills, the server on one of its own.

What a way spends on the client is paid several times over there, as where many workers share a small machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.quiet import compare
from bench.servers import NotHere, Server
from lapse.bench import STANDARD, Measurement, Shape, lapse, table_for
from lapse.bench.measure import Progress

OTHERS = 3
"""Processes that take what they can get of the client's processor: a quarter of it is left."""
LAPSE = lapse("Lapse", lapse_mode="gentle")


def busy(server: Server, rows: int, *, rounds: int, progress: Progress) -> list[Measurement]:
    table = table_for(server.url, "bench_rows")
    with _apart(server):
        return compare(table, {Shape(rows=rows): (*STANDARD[:2], LAPSE)}, rounds=rounds, progress=progress)


@contextmanager
def _apart(server: Server) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    if len(before) < 2 or server.pid is None:
        raise NotHere("it takes a processor for the server and another one for the client")
    serving, asking = sorted(before)[:2]
    _pin(server.pid, serving)
    _pin(os.getpid(), asking)
    # They inherit the processor of this one.
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(OTHERS)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
        for task in Path(f"/proc/{os.getpid()}/task").iterdir():
            os.sched_setaffinity(int(task.name), before)


def _pin(process: int, processor: int) -> None:
    """All threads of a process; later ones inherit it."""
    for task in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(task.name), {processor})
