"""A RocksDB store that Lapse did not write: its values as they are, to look at, never to change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from lapse.kv.foreign import ForeignStoreBase
from lapse.kv.keys import check_key, check_limit, read_range
from lapse.kv.options import Options
from lapse.kv.rocksdb.engine import engine_errors, load
from lapse.kv.rocksdb.views import Cursor
from lapse.kv.url import StoreUrl
from lapse.kv.values import Meta


class ForeignRocksStore(ForeignStoreBase):
    """Rows have no times of their own here, so none expires and `meta` knows nothing."""

    def __init__(self, *, url: StoreUrl, database: Any, options: Options) -> None:
        super().__init__(url)
        self._database = database

    def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None:
        check_key(key)
        with engine_errors(self._url):
            value: bytes | None = self._database.get(key)
            return value

    def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None:
        return None

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        keys, left = read_range(start, end, prefix), check_limit(limit)
        if keys.is_empty or left == 0:
            return
        rows = chain.from_iterable(Cursor(load(), self._database, keys).chunks())
        for count, item in enumerate(rows, start=1):
            yield item
            if count == left:
                return

    def close(self) -> None:
        self._database.close()
