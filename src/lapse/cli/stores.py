"""The key-value stores that a worker purges: its options for them, and the thread that does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry

from lapse.kv import Purger, PurgerConfig

Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--kv",
        metavar="STORE",
        help="A key-value store to purge, such as rocksdb:/path or slatedb:s3://bucket/prefix. Again for more.",
    ),
]
Every = Annotated[
    str, typer.Option("--kv-every", metavar="DURATION", help="Time between two purges of a store; up to 10% less.")
]


def open_purger(stores: list[str], every: str, registry: CollectorRegistry) -> Purger:
    return Purger(PurgerConfig(stores=tuple(stores), every=every), registry=registry)


@contextmanager
def purging(purger: Purger | None, stopping: Event) -> Iterator[None]:
    """Purges beside what is done inside it. At its end the purge at hand is finished."""
    if purger is None:
        yield
        return
    thread = Thread(target=purger.run_forever, args=(stopping,), name="lapse-purger")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
