"""Whether purged rows are gone from the places where SlateDB keeps a store's bytes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from lapse.kv.slatedb.engine import data_files
from lapse.kv.slatedb.s3 import bucket_from
from lapse.kv.url import StoreUrl
from lapse.kv.values import Verification
from lapse.kv.verify import File, LocalFile, Sample, check, take_sample

_DATA_FOLDERS = ("wal/", "compacted/")


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One whose bytes cannot be read."""

    name: str

    def blocks(self) -> Iterator[bytes]:
        return iter(())


class Proof:
    """Takes a sample before a purge and looks for it afterwards.

    Directories and S3 are read. Of other object stores, and of S3 where only SlateDB's client has the keys, the
    tables are listed and the result says what was not looked at.
    """

    def __init__(self, url: StoreUrl, admin: Any, *, is_over: Callable[[], bool]) -> None:
        self.sample = Sample()
        self._admin = admin
        self._is_over = is_over
        self._readable, self._unread = _readable(url)

    async def begin(self) -> None:
        """To be called when the sample has its payloads and everything is flushed."""
        files = await self._files()
        try:
            await asyncio.to_thread(take_sample, self.sample, files, is_over=self._is_over)
        except OSError as error:
            self._give_up(error)

    async def files_left(self) -> bool:
        return bool(self.sample.left_of(await self._files()))

    async def check(self) -> Verification:
        files = await self._files()
        try:
            found = await asyncio.to_thread(check, self.sample, files, is_over=self._is_over)
        except OSError as error:
            self._give_up(error)
            return await self.check()
        if self._unread is None:
            return found
        unchecked = f"the bytes of the objects, and which of the log's objects remain: {self._unread}"
        return replace(found, payloads=0, payloads_searchable=0, unchecked=unchecked)

    async def _files(self) -> list[File]:
        """A store that is open has at least one: none means that they are somewhere else, not that all are gone."""
        if self._readable is not None:
            try:
                if found := await asyncio.to_thread(self._readable):
                    return found
                raise FileNotFoundError("there are none where they should be")
            except OSError as error:
                self._give_up(error)
        return await _list_tables(self._admin)

    def _give_up(self, error: OSError) -> None:
        self._readable, self._unread = None, f"they could not be read ({error})"


def _readable(url: StoreUrl) -> tuple[Callable[[], list[File]] | None, str | None]:
    """How to list what can be read, or why nothing can."""
    path = url.path
    if path is not None:
        return lambda: [LocalFile(file) for file in data_files(path)], None
    if url.remote is None:
        return None, "a store in memory has no files"
    parts = urlsplit(url.remote)
    if parts.scheme not in ("s3", "s3a"):
        return None, f"Lapse reads objects of s3://, not of {parts.scheme}://"
    bucket, prefix = bucket_from(os.environ, parts.netloc), parts.path.strip("/")
    if bucket is None:
        return None, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not in the environment"
    return lambda: [file for folder in _DATA_FOLDERS for file in bucket.objects(f"{prefix}/{folder}")], None


async def _list_tables(admin: Any) -> list[File]:
    """By asking what a deletion of the whole database would remove, without one: the only listing there is. The log is
    left out, because its empty objects, which stay, cannot be told from others by their names."""
    names = await admin.delete_db(False)
    return [ListedObject(name) for name in names if "/compacted/" in name]
