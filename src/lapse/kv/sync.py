"""Stores for code that is not asynchronous: the methods of `lapse.kv.base` and `lapse.kv.reads`, each run to its end in
the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime, timedelta
from functools import wraps
from importlib import import_module
from itertools import chain
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from lapse.kv.base import AsyncBatch, AsyncStore
from lapse.kv.options import OpenOptions, Options
from lapse.kv.reads import AsyncReader, RawRow
from lapse.kv.runner import Direct, Runner
from lapse.kv.slatedb.store import AsyncTransaction
from lapse.kv.ttl import Ttl, TtlLike, plain_ttl
from lapse.kv.url import ROCKSDB, StoreUrl, parse

P = ParamSpec("P")
T = TypeVar("T")

_CLASSES_OF_TTLS = (str, timedelta, datetime)


def open(url: str, **options: Unpack[OpenOptions]) -> Store:
    """Open the store at `url`, creating it if need be.

    `default_ttl` is stored with the database; left out, the stored one stays. `snapshot_lifetime` is fixed when the
    store is created. With `durable` every write waits until it would survive a crash of the machine.
    """
    parsed, read = parse(url), Options(**options)
    runner = Direct() if parsed.engine == ROCKSDB else Runner()
    inner: AsyncStore = runner.run(engine_of(parsed).open_store(parsed, read))
    if isinstance(runner, Direct):
        runner.lock = inner.lock
    return Store(inner, runner)


def engine_of(url: StoreUrl) -> Any:
    """Imported when it is needed: either engine may be missing."""
    return import_module(f"lapse.kv.{url.engine}.opening")


def waited(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The same method, run to its end. Nothing of the caller's runs in it: a TTL or text is read before, as its own
    class and time zone say it."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **named: P.kwargs) -> T:
        plain = {name: _plain(value) for name, value in named.items()}
        work: Coroutine[Any, Any, T] = getattr(self._inner, method.__name__)(*map(_plain, args), **plain)
        answer: T = self._runner.run(work)
        return answer

    return call


def _plain(value: Any) -> Any:
    return plain_ttl(value) if isinstance(value, _CLASSES_OF_TTLS) else value


class Block:
    """Used with `with`: committed at the end if it can be and all went well, else closed."""

    _inner: Any

    def __init__(self, inner: Any, runner: Direct | Runner) -> None:
        self._inner = inner
        self._runner = runner
        vars(self).update(inner.quick())

    def close(self) -> None:
        """To end what a closed store has ended is no error."""
        if not self._runner.is_closed:
            self._runner.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        (getattr(self, "commit", self.close) if kind is None else self.close)()


class Reader(Block):
    get = waited(AsyncReader.get)
    meta = waited(AsyncReader.meta)

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> Iterator[RawRow]:
        run = self._runner.run
        scan = self._inner.open_scan(start, end, prefix, limit, include_expired)
        first = run(scan.fill())  # now, not at the first row: this is when the scan begins

        def chunks(rows: Iterator[RawRow] | None) -> Iterator[Iterator[RawRow]]:
            while rows is not None:
                yield rows
                rows = run(scan.fill())

        return chain.from_iterable(chunks(first))


class Snapshot(Reader):
    """A view that does not change, neither by writes nor by time."""


class Transaction(Reader):
    """Reads one snapshot plus its own writes; commits when its `with` block ends well, else rolls back.

    Serializable: `commit` raises TransactionConflict if another write touched what this transaction read or
    wrote.
    """

    put = waited(AsyncTransaction.put)
    delete = waited(AsyncTransaction.delete)
    commit = waited(AsyncTransaction.commit)

    def rollback(self) -> None:
        self.close()


class Batch(Block):
    """Writes that happen together when the `with` block ends well, or not at all. The last write of a key
    wins."""

    _inner: AsyncBatch

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        self._inner.put(key, value, ttl)

    def delete(self, key: bytes) -> None:
        self._inner.delete(key)

    commit = waited(AsyncBatch.commit)

    def __len__(self) -> int:
        return len(self._inner)


class Store(Reader):
    _inner: AsyncStore

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._runner.close()
            for name in ("get", "put"):  # those of RocksDB would keep the engine alive
                vars(self).pop(name, None)

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def default_ttl(self) -> timedelta | str | None:
        return self._inner.default_ttl

    set_default_ttl = waited(AsyncStore.set_default_ttl)
    put = waited(AsyncStore.put)
    put_many = waited(AsyncStore.put_many)
    delete = waited(AsyncStore.delete)
    touch = waited(AsyncStore.touch)
    persist = waited(AsyncStore.persist)
    merge = waited(AsyncStore.merge)
    purge = waited(AsyncStore.purge)
    preview = waited(AsyncStore.preview)
    history = waited(AsyncStore.history)
    pause = waited(AsyncStore.pause)
    resume = waited(AsyncStore.resume)
    stats = waited(AsyncStore.stats)
    flush = waited(AsyncStore.flush)

    def batch(self) -> Batch:
        return Batch(self._inner.batch(), self._runner)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._runner.run(self._inner.snapshot()), self._runner)

    def transaction(self) -> Transaction:
        """Refused with Unsupported where the engine has none."""
        return Transaction(self._runner.run(self._inner.transaction()), self._runner)
