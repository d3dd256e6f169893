"""Whether purged rows are gone from the places where SlateDB keeps a store's bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lapse.kv.slatedb.engine import data_files
from lapse.kv.url import StoreUrl
from lapse.kv.values import Verification
from lapse.kv.verify import Sample, check, take_sample

_WITH_ROWS = ("wal", "compacted")
_WITH_BOUNDS = ("manifest",)
"""The first and last key of every table."""


class Proof:
    """Takes a sample before a purge and looks for it afterwards.

    A directory's files are read. Of object stores the tables are listed, and the result says what was not looked at.
    """

    def __init__(self, url: StoreUrl, admin: Any, sample: Sample, *, is_over: Callable[[], bool]) -> None:
        self.sample = sample
        self._url = url
        self._admin = admin
        self._is_over = is_over

    async def begin(self) -> None:
        """To be called when the sample has its payloads and everything is flushed."""
        path = self._url.path
        if path is None:
            self.sample.files = frozenset(await self._tables())
            return
        await asyncio.to_thread(take_sample, self.sample, data_files(path), is_over=self._is_over)
        self.sample.files |= {file.name for file in data_files(path, _WITH_BOUNDS)}

    async def files_left(self) -> bool:
        path = self._url.path
        parts = (*_WITH_ROWS, *_WITH_BOUNDS)
        names = await self._tables() if path is None else [file.name for file in data_files(path, parts)]
        return bool(self.sample.left_of(names))

    async def check(self) -> Verification:
        path = self._url.path
        if path is not None:
            files, manifests = data_files(path), data_files(path, (*_WITH_BOUNDS, "compactions"))
            return await asyncio.to_thread(check, self.sample, files, is_over=self._is_over, manifests=manifests)
        names = await self._tables()
        why = "a store in memory has no files" if self._url.in_memory else "Lapse does not read objects"
        return Verification(
            files=len(names),
            payloads=0,
            payloads_searchable=0,
            payloads_left=0,
            files_left=self.sample.left_of(names),
            unchecked=f"the bytes of the objects, and which of the log's objects remain: {why}",
        )

    async def _tables(self) -> list[str]:
        """By asking what a deletion of the whole database would remove, without one: the only listing there is. The log
        is left out, because its empty objects, which stay, cannot be told from others by their names."""
        return [name for name in await self._admin.delete_db(False) if "/compacted/" in name]
