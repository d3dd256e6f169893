"""The same interface for asyncio; what each method does is written in `lapse.kv.abc`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Self

from lapse.kv.options import DurationLike
from lapse.kv.ttl import Ttl, TtlLike
from lapse.kv.values import Meta, PurgeResult, Stats


class AsyncReader(ABC):
    @abstractmethod
    async def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None: ...

    @abstractmethod
    async def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None: ...

    @abstractmethod
    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        """The scan begins with its first row, not with this call."""


class AsyncSnapshot(AsyncReader):
    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncTransaction(AsyncReader):
    @abstractmethod
    async def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None: ...

    @abstractmethod
    async def delete(self, key: bytes) -> None: ...

    @abstractmethod
    async def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes: ...

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.commit()
        else:
            await self.rollback()


class AsyncBatch(ABC):
    """Collecting writes waits for nothing, so only `commit` is awaited."""

    @abstractmethod
    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None: ...

    @abstractmethod
    def delete(self, key: bytes) -> None: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    async def commit(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.commit()


class AsyncStore(AsyncReader):
    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def default_ttl(self) -> timedelta | str | None: ...

    @abstractmethod
    async def set_default_ttl(self, ttl: Ttl | DurationLike | None) -> None: ...

    @abstractmethod
    async def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None: ...

    @abstractmethod
    async def put_many(self, rows: Iterable[tuple[bytes, bytes]], ttl: TtlLike = Ttl.DEFAULT) -> int: ...

    @abstractmethod
    async def delete(self, key: bytes) -> None: ...

    @abstractmethod
    async def touch(self, key: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bool: ...

    @abstractmethod
    async def persist(self, key: bytes) -> bool: ...

    @abstractmethod
    async def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes: ...

    @abstractmethod
    def batch(self) -> AsyncBatch: ...

    @abstractmethod
    async def snapshot(self) -> AsyncSnapshot: ...

    @abstractmethod
    async def transaction(self) -> AsyncTransaction: ...

    @abstractmethod
    async def purge(
        self,
        *,
        within: DurationLike | None = None,
        max_rows: int | None = None,
        rows_per_second: float | None = None,
        stop: threading.Event | None = None,
    ) -> PurgeResult: ...

    @abstractmethod
    async def stats(self, *, count: bool = False) -> Stats: ...

    @abstractmethod
    async def flush(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
