"""`lapse worker --config`: one worker for the databases of a file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from prometheus_client import CollectorRegistry

from lapse.app.databases import Fleet
from lapse.app.exposition import ManyCollector
from lapse.app.receivers import Receiver
from lapse.cli.databases import open_databases
from lapse.cli.listening import listening_for_many
from lapse.cli.stopping import stop_on_signals
from lapse.cli.stores import open_purger, purging
from lapse.console.users import Access
from lapse.kv import PurgerConfig
from lapse.runner.events import MultiListener
from lapse.runner.joblog import JobLog
from lapse.runner.metering import Meter
from lapse.runner.multi import MultiWorker

log = logging.getLogger("lapse.worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What one worker takes, over all databases."""

    threads: int
    connections: int | None


def serve_many(
    file: Path,
    stores: PurgerConfig | None,
    bounds: Bounds,
    listen: str | None,
    access: Access,
    *,
    allow_actions: bool,
    receivers: Sequence[Receiver],
) -> None:
    """Until a signal asks to stop. Raises FileProblem."""
    databases, registry, stopping = open_databases(file), CollectorRegistry(), Event()
    with closing(Fleet(databases, lambda metrics: MultiListener((JobLog(), Meter(metrics))), receivers)) as fleet:
        registry.register(ManyCollector(lambda: fleet.served))
        purger = open_purger(stores, registry)
        service = MultiWorker(
            fleet.sources, threads=bounds.threads, connections=bounds.connections, on_gone=fleet.forget
        )

        def stop() -> None:
            stopping.set()
            service.stop()

        server = nullcontext() if listen is None else listening_for_many(
            fleet, registry, listen, access=access, allow_actions=allow_actions,
            is_working=lambda: not stopping.is_set(), purger=purger,
        )  # fmt: skip
        with stop_on_signals(stop), server, purging(purger, stopping):
            log.info("worker begins on the databases of %s: %s", file, ", ".join(e.name for e in databases.entries))
            service.serve()
        log.info("worker has stopped")
