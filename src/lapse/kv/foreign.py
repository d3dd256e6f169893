"""What a store that Lapse did not write answers to everything that is not a read."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import NoReturn

from lapse.errors import ForeignStore
from lapse.kv.abc import Batch, Snapshot, Store, Transaction
from lapse.kv.options import DurationLike
from lapse.kv.ttl import Ttl, TtlLike
from lapse.kv.url import StoreUrl
from lapse.kv.values import PurgeResult, Stats


class ForeignStoreBase(Store):
    def __init__(self, url: StoreUrl) -> None:
        self._url = url

    @property
    def url(self) -> str:
        return str(self._url)

    @property
    def default_ttl(self) -> timedelta | str | None:
        return None

    def set_default_ttl(self, ttl: Ttl | DurationLike | None) -> None:
        self._refuse()

    def put(self, key: bytes, value: bytes, ttl: TtlLike = Ttl.DEFAULT) -> None:
        self._refuse()

    def put_many(self, rows: Iterable[tuple[bytes, bytes]], ttl: TtlLike = Ttl.DEFAULT) -> int:
        self._refuse()

    def delete(self, key: bytes) -> None:
        self._refuse()

    def touch(self, key: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bool:
        self._refuse()

    def persist(self, key: bytes) -> bool:
        self._refuse()

    def merge(self, key: bytes, operand: bytes, ttl: TtlLike = Ttl.DEFAULT) -> bytes:
        self._refuse()

    def batch(self) -> Batch:
        self._refuse()

    def snapshot(self) -> Snapshot:
        self._refuse()

    def transaction(self) -> Transaction:
        self._refuse()

    def purge(
        self,
        *,
        within: DurationLike | None = None,
        max_rows: int | None = None,
        rows_per_second: float | None = None,
        stop: threading.Event | None = None,
    ) -> PurgeResult:
        self._refuse()

    def stats(self, *, count: bool = False) -> Stats:
        self._refuse()

    def flush(self) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ForeignStore(
            f"{self.url} was not written by Lapse; it can only be read", hint="copy its rows to a new store"
        )
