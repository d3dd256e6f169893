"""A worker process for the chaos driver: an ordinary one, except that on SIGUSR1 half of its statements fail."""

from __future__ import annotations

import logging
import random
import signal
import sys
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import OperationalError

import lapse


class Faults:
    active = False

    def toggle(self, *_: Any) -> None:
        self.active = not self.active

    def maybe_fail(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if self.active and random.random() < 0.5:
            raise OperationalError(statement, None, Exception("injected fault"))


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    with lapse.open(sys.argv[1]) as database:
        faults = Faults()
        event.listen(database.engine.database, "before_cursor_execute", faults.maybe_fail)
        worker = database.worker()
        signal.signal(signal.SIGUSR1, faults.toggle)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.serve()


if __name__ == "__main__":
    main()
