"""The interface of a key-value store with per-row TTL; every engine does what is written here.

A row is expired at every time `>=` its expiry. Expired rows are not returned by any read unless
`include_expired` is true. Reads outside a snapshot or transaction use the time of the moment a row is handed
out; inside one the time stands still. The TTL of a row is the one of its latest write.

`lapse.kv.aio` has the same for asyncio: classes of the same names with `Async` before them, whose methods are awaited
(a scan's rows by `async for`; of a batch only `commit`), and whose scan begins with its first row at the latest. Those
are what the engines implement, in `lapse.kv.base`. Here their coroutines are run in the caller's thread. Nothing else
of the caller's runs in them: a TTL is read before, as its own class and time zone say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, Unpack

from lapse.kv.base import AsyncBatch, AsyncStore
from lapse.kv.options import Budget, DurationLike, OpenOptions, Options, PurgeLimits
from lapse.kv.reads import AsyncReader, RawRow
from lapse.kv.runner import Direct, Runner
from lapse.kv.ttl import Ttl, TtlLike, plain_ttl, read_default
from lapse.kv.url import ROCKSDB, StoreUrl, parse
from lapse.kv.values import Meta, Preview, PurgeRecord, PurgeResult, Stats

if TYPE_CHECKING:
    from lapse.kv.slatedb.store import AsyncTransaction


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
    _inner: AsyncReader

    def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None:
        return self._runner.run(self._inner.get(key, include_expired=include_expired))

    def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None:
        """When the row was written, when it expires and how long that is from now."""
        return self._runner.run(self._inner.meta(key, include_expired=include_expired))

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> Iterator[RawRow]:
        """Rows of `[start, end)` that begin with `prefix`, in key order, as they were when the scan began."""
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

    _inner: AsyncTransaction

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        self._runner.run(self._inner.put(key, value, plain_ttl(ttl)))

    def delete(self, key: bytes) -> None:
        self._runner.run(self._inner.delete(key))

    def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        return self._runner.run(self._inner.merge(key, operand, plain_ttl(ttl)))

    def commit(self) -> None:
        self._runner.run(self._inner.commit())

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

    def commit(self) -> None:
        self._runner.run(self._inner.commit())

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
        """The TTL of writes that name none; text where it has calendar months, None where rows stay."""
        return self._inner.default_ttl

    def set_default_ttl(self, ttl: Ttl | DurationLike | None) -> None:
        """Change it, in the store, for writes from now on; rows already written keep their expiry."""
        self._runner.run(self._inner.set_default_ttl(read_default(ttl)))

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        self._runner.run(self._inner.put(key, value, plain_ttl(ttl)))

    def put_many(
        self, rows: Iterable[tuple[bytes, bytes] | tuple[bytes, bytes, TtlLike]], ttl: TtlLike = Ttl.DEFAULT
    ) -> int:
        """Write rows together: the fastest way in. A row may name its own TTL. TTLs count from the moment the rows are
        written, after the last of them was taken from `rows`. Returns how many."""
        return self._runner.run(self._inner.put_many(rows, ttl))

    def delete(self, key: bytes) -> None:
        self._runner.run(self._inner.delete(key))

    def touch(self, key: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bool:
        """Give a live row a new TTL from now on; False if there is none."""
        return self._runner.run(self._inner.touch(key, plain_ttl(ttl)))

    def persist(self, key: bytes) -> bool:
        """Remove the TTL of a live row; False if there is none."""
        return self.touch(key, Ttl.NO_EXPIRY)

    def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        """Combine the live value with `operand` by the store's merge function, as one write with this TTL.

        An expired value is not seen by the function: what has expired does not come back through a merge. The function
        is called again if another write of the row came in between.
        """
        return self._runner.run(self._inner.merge(key, operand, plain_ttl(ttl)))

    def batch(self) -> Batch:
        return Batch(self._inner.batch(), self._runner)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._runner.run(self._inner.snapshot()), self._runner)

    def transaction(self) -> Transaction:
        """Refused with Unsupported where the engine has none."""
        return Transaction(self._runner.run(self._inner.transaction()), self._runner)

    def purge(self, **limits: Unpack[PurgeLimits]) -> PurgeResult:
        """Remove rows that are expired, on an idle store as well.

        Without `within` the rows are removed and the engine frees their bytes in its own time. With `within` flush,
        compaction and garbage collection are driven until the bytes are gone, the store's files are searched for them,
        and `complete` says whether all that happened in this time. Where files cannot be searched (object stores) it
        can be true without that, and `verification.unchecked` says so. Once `stop` is set the purge ends at its next
        step and leaves the rest for another one.
        """
        return self._runner.run(self._inner.purge_within(Budget(**limits)))

    def preview(self) -> Preview:
        """What a purge would remove now, and what expires next; every row is read, and nothing is changed."""
        return self._runner.run(self._inner.preview())

    def history(self) -> list[PurgeRecord]:
        """The latest hundred purges, latest first."""
        return self._runner.run(self._inner.history())

    def pause(self, reason: str = "paused") -> None:
        """Refuse purges until `resume`. Expired rows stay stored, and stay invisible."""
        self._runner.run(self._inner.pause(str.__str__(reason)))

    def resume(self) -> None:
        self._runner.run(self._inner.resume())

    def stats(self, *, count: bool = False) -> Stats:
        """With `count` every row is read; without, only what the engine knows at once."""
        return self._runner.run(self._inner.stats(count=count))

    def flush(self) -> None:
        """Make every write so far survive a crash of the machine."""
        self._runner.run(self._inner.flush())
