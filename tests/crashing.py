"""A worker that kills itself between two statements: `python -m tests.crashing URL TABLE N CLOCK [FIRST]`.

The first batch of a job has at most FIRST rows, and others follow.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime

from sqlalchemy import Engine, event

from lapse.app import Lapse
from lapse.clock import ManualClock
from lapse.runner import atonce


def begin_with(rows: int, set_attribute: Callable[[object, str, object], None], engine: object) -> None:
    """Every table seems larger than its job's first batch, which has so many rows."""
    set_attribute(atonce, "SMALL_ROWS", rows - 1)
    set_attribute(atonce, "BATCH_ROWS", rows)
    set_attribute(engine, "planned_rows", lambda *_: rows + 1)


def main(url: str, table: str, survives: int, now: str, first: int | None = None) -> None:
    db = Lapse(url, clock=ManualClock(datetime.fromisoformat(now)))
    if first is not None:
        begin_with(first, setattr, db.engine)
    seen = 0

    # Of every pool: some engines delete through one of its own.
    @event.listens_for(Engine, "before_cursor_execute")
    def _count(*arguments: object) -> None:
        nonlocal seen
        seen += 1
        if seen > survives:
            os.kill(os.getpid(), signal.SIGKILL)

    db.run(table)
    db.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:]))
