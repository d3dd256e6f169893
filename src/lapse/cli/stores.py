"""The key-value stores that a worker purges: its options for them, and the thread that does it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Event, Thread
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry

from lapse.cli.output import Output, moment
from lapse.errors import LapseError, UsageError
from lapse.kv import Purger, PurgerConfig
from lapse.kv import open as open_store
from lapse.kv.purger import DEFAULT_EVERY
from lapse.kv.url import StoreUrl, parse

Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--kv",
        metavar="STORE",
        envvar="LAPSE_KV",
        show_envvar=False,
        help="A key-value store, such as rocksdb:/path or slatedb:s3://bucket/prefix; again for more. Or in $LAPSE_KV.",
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


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreStatus:
    """A store as `lapse status` shows it; `problem` says why it could not be looked at."""

    store: str
    state: str
    default_ttl: str | None = None
    rows: int | None = None
    bytes: int | None = None
    last_purge: datetime | None = None
    last_purged: int | None = None
    problem: str | None = None


def store_statuses(stores: list[str]) -> list[StoreStatus]:
    """Looked at while applications write them."""
    return [_status(parse(url)) for url in stores]


def _status(url: StoreUrl) -> StoreStatus:
    try:
        with open_store(url.full, read_only=True, registry=CollectorRegistry()) as store:
            stats, history = store.stats(), store.history()
    except (LapseError, OSError) as error:
        return StoreStatus(store=str(url), state="unreachable", problem=str(error).partition("\n")[0])
    last = history[0] if history else None
    state = "never purged" if last is None else "purged" if last.complete else "incomplete"
    return StoreStatus(
        store=str(url),
        state="paused" if stats.paused else state,
        default_ttl=stats.default_ttl,
        rows=stats.rows,
        bytes=stats.bytes,
        last_purge=stats.last_purge,
        last_purged=None if last is None else last.purged,
        problem=stats.paused or (None if last is None or last.complete else "; ".join(last.reasons)),
    )


def show_stores(output: Output, statuses: list[StoreStatus]) -> None:
    columns = ("store", "state", "default TTL", "rows", "bytes", "last purge (UTC)", "purged")
    rows = [
        (
            each.store,
            each.state + (f": {each.problem}" if each.problem else ""),
            each.default_ttl or "-",
            "-" if each.rows is None else f"{each.rows:,}",
            "-" if each.bytes is None else f"{each.bytes:,}",
            moment(each.last_purge),
            "-" if each.last_purged is None else f"{each.last_purged:,}",
        )
        for each in statuses
    ]
    output.table(columns, rows, right=("rows", "bytes", "purged"))


def open_purger(config: PurgerConfig | None, registry: CollectorRegistry) -> Purger | None:
    return None if config is None else Purger(config, registry=registry)


STOP_S = 10.0
"""How long a purge may take to come to its next step. One that waits for an unreachable object store can take
minutes: the worker exits without it, as in a crash, after which the next purge continues."""

log = logging.getLogger("lapse.worker")


@contextmanager
def purging(purger: Purger | None, stopping: Event) -> Iterator[None]:
    """Runs the purger in a thread during the block; at its end the running purge is told to stop."""
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
