"""A worker that kills itself between two statements: `python -m tests.crashing URL TABLE N CLOCK`."""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime

from sqlalchemy import Engine, event

from lapse.app import Lapse
from lapse.clock import ManualClock


def main(url: str, table: str, survives: int, now: str) -> None:
    db = Lapse(url, clock=ManualClock(datetime.fromisoformat(now)))
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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
