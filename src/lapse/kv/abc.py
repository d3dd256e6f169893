"""The interface of a key-value store with per-row TTL; every engine does what is written here.

A row is expired at every time `>=` its expiry. Expired rows are not returned by any read unless
`include_expired` is true. Reads outside a snapshot or transaction use the time of the moment a row is handed
out; inside one the time stands still. The TTL of a row is the one of its latest write.

`lapse.kv.aio` has the same for asyncio: classes of the same names with `Async` before them, whose methods are awaited
(a scan's rows by `async for`; of a batch only `commit`), and whose scan begins with its first row. Those are what the
engines implement, in `lapse.kv.base`; `lapse.kv.sync` makes these of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self, Unpack, runtime_checkable

from lapse.kv.options import DurationLike, PurgeLimits
from lapse.kv.ttl import Ttl, TtlLike
from lapse.kv.values import Meta, Preview, PurgeRecord, PurgeResult, Stats


@runtime_checkable
class Reader(Protocol):
    def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None: ...

    def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None:
        """When the row was written, when it expires and how long that is from now."""
        ...

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows of `[start, end)` that begin with `prefix`, in key order, as they were when the scan began."""
        ...


class Writer(Protocol):
    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None: ...
    def delete(self, key: bytes) -> None: ...


class Block(Protocol):
    """Used with `with`: committed at the end if it can be and all went well, else closed."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Snapshot(Reader, Block, Protocol):
    """A view that does not change, neither by writes nor by time."""


@runtime_checkable
class Transaction(Reader, Writer, Block, Protocol):
    """Reads one snapshot plus its own writes; commits when its `with` block ends well, else rolls back.

    Serializable: `commit` raises TransactionConflict if another write touched what this transaction read or
    wrote.
    """

    def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


@runtime_checkable
class Batch(Writer, Block, Protocol):
    """Writes that happen together when the `with` block ends well, or not at all. The last write of a key
    wins."""

    def commit(self) -> None: ...
    def __len__(self) -> int: ...


@runtime_checkable
class Store(Reader, Writer, Block, Protocol):
    @property
    def url(self) -> str: ...

    @property
    def default_ttl(self) -> timedelta | str | None:
        """The TTL of writes that name none; text where it has calendar months, None where rows stay."""
        ...

    def set_default_ttl(self, ttl: Ttl | DurationLike | None) -> None:
        """Change it, in the store, for writes from now on; rows already written keep their expiry."""
        ...

    def put_many(
        self, rows: Iterable[tuple[bytes, bytes] | tuple[bytes, bytes, TtlLike]], ttl: TtlLike = Ttl.DEFAULT
    ) -> int:
        """Write rows together: the fastest way in. A row may name its own TTL. TTLs count from the moment the rows are
        written, after the last of them was taken from `rows`. Returns how many."""
        ...

    def touch(self, key: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bool:
        """Give a live row a new TTL from now on; False if there is none."""
        ...

    def persist(self, key: bytes) -> bool:
        """Remove the TTL of a live row; False if there is none."""
        ...

    def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        """Combine the live value with `operand` by the store's merge function, as one write with this TTL.

        An expired value is not seen by the function: what has expired does not come back through a merge. The function
        is called again if another write of the row came in between.
        """
        ...

    def batch(self) -> Batch: ...
    def snapshot(self) -> Snapshot: ...

    def transaction(self) -> Transaction:
        """Refused with Unsupported where the engine has none."""
        ...

    def purge(self, **limits: Unpack[PurgeLimits]) -> PurgeResult:
        """Remove rows that are expired, on an idle store as well.

        Without `within` the rows are removed and the engine frees their bytes in its own time. With `within` flush,
        compaction and garbage collection are driven until the bytes are gone, the store's files are searched for them,
        and `complete` says whether all that happened in this time. Where files cannot be searched (object stores) it
        can be true without that, and `verification.unchecked` says so. Once `stop` is set the purge ends at its next
        step and leaves the rest for another one.
        """
        ...

    def preview(self) -> Preview:
        """What a purge would remove now, and what expires next; every row is read, and nothing is changed."""
        ...

    def history(self) -> list[PurgeRecord]:
        """The latest hundred purges, latest first."""
        ...

    def pause(self, reason: str = "paused") -> None:
        """Refuse purges until `resume`. Expired rows stay stored, and stay invisible."""

    def resume(self) -> None: ...

    def stats(self, *, count: bool = False) -> Stats:
        """With `count` every row is read; without, only what the engine knows at once."""
        ...

    def flush(self) -> None:
        """Make every write so far survive a crash of the machine."""
