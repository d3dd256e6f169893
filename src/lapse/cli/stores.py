"""The key-value stores that a worker purges: its options for them, and the thread that does it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry

from lapse.errors import UsageError
from lapse.kv import Purger, PurgerConfig
from lapse.kv.purger import DEFAULT_EVERY

Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--kv",
        metavar="STORE",
        help="A key-value store to purge, such as rocksdb:/path or slatedb:s3://bucket/prefix. Again for more.",
    ),
]
Every = Annotated[
    str | None,
    typer.Option(
        "--kv-every",
        metavar="DURATION",
        help=f"Time between two purges of a store, shortened by up to a tenth. Default: {DEFAULT_EVERY}.",
    ),
]

Rate = Annotated[
    float | None,
    typer.Option(
        "--kv-rows-per-second",
        metavar="N",
        help="Purge at most this many rows of a store per second, where rows are purged one by one.",
    ),
]


def read_config(stores: list[str] | None, every: str | None, rows_per_second: float | None) -> PurgerConfig | None:
    """None where there is nothing to purge."""
    if stores:
        return PurgerConfig(stores=tuple(stores), every=every or DEFAULT_EVERY, rows_per_second=rows_per_second)
    for name, value in (("--kv-every", every), ("--kv-rows-per-second", rows_per_second)):
        if value is not None:
            raise UsageError(f"{name} is about key-value stores", hint="name them with --kv")
    return None


def open_purger(config: PurgerConfig | None, registry: CollectorRegistry) -> Purger | None:
    return None if config is None else Purger(config, registry=registry)


STOP_S = 10.0
"""How long a purge may take to come to its next step. One that waits for an object store that is away can take minutes:
it is left where it is, as by a crash, which no step of a purge minds."""

log = logging.getLogger("lapse.worker")


@contextmanager
def purging(purger: Purger | None, stopping: Event) -> Iterator[None]:
    """Purges beside what is done inside it. At its end the purge at hand is told to stop."""
    if purger is None:
        yield
        return
    thread = Thread(target=purger.run_forever, args=(stopping,), name="lapse-purger", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(STOP_S)
        if thread.is_alive():
            log.warning("a key-value store did not answer for %.0f s; its purge is left for the next time", STOP_S)
