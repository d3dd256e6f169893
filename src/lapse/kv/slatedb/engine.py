"""Reaching SlateDB: object store, settings, keys, files, and the boundary of every call into the engine, which has a
time limit and Lapse's errors for the engine's: on a full disk, or while its object store is unreachable, SlateDB
retries forever.

Lapse's own keys begin with `RESERVED`, a row's key is the user's. In a store that once had time buckets every row's key
begins with `SEGMENT`, because its database is cut into segments for good; and while it has them, with a byte and the
bucket's number.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from ctypes import memmove
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from lapse.errors import (
    ClockBehind,
    DatabaseError,
    DatabaseUnavailable,
    Fenced,
    LapseError,
    MissingExtra,
    StoreClosed,
    TransactionConflict,
)
from lapse.kv.keys import RESERVED
from lapse.kv.runner import Loop
from lapse.kv.url import StoreUrl, lock_owner, store_locked

T = TypeVar("T")

LOCK_FILE = "lapse.lock"
EXTRACTOR_NAME = "lapse-buckets"
BUCKET_MARK = b"\x01"
BUCKET_PREFIX_BYTES = 9

COMPACTOR_CHECKPOINT_S = 307
"""How long the compactor's own checkpoints live. An unusual number, because the length of their life is the
only thing that tells them from the nameless checkpoints of other readers, which a purge must not delete."""

_LOCAL_POLL = '"100ms"'
_REMOTE_POLL = '"1s"'
_BYTES, _BUFFER = "_UniffiFfiConverterBytes", "_UniffiRustBuffer"
"""Names of the binding's own."""
_GUARDED_ANSWERS = ("begin", "scan", "snapshot")
_HALF_WRITTEN = re.compile(r"\.sst#\d+$")


def load() -> Any:
    """The generated binding has no useful types, so what comes from it is Any, here and only here."""
    try:
        import slatedb.uniffi as slatedb
    except ImportError as error:
        raise MissingExtra("SlateDB (slatedb)", "kv") from error
    return slatedb


def translate(url: StoreUrl, error: Exception) -> Exception:
    errors = load().Error
    text = getattr(error, "message", str(error))
    if isinstance(error, errors.Closed):
        if getattr(error.reason, "name", "") == "FENCED":
            return Fenced(f"{url} was taken over by another writer", hint="one process writes a store at a time")
        return StoreClosed(f"{url} is closed: {text}")
    if isinstance(error, errors.Transaction):
        return TransactionConflict(f"{url}: {text}", hint="run the transaction again")
    if isinstance(error, errors.Unavailable):
        return DatabaseUnavailable(f"{url}: {text}")
    if isinstance(error, errors.Invalid) and "clock tick" in text:  # a time before one that it has already used
        return ClockBehind(f"{url}: {text}", hint="set the system's clock right")
    if isinstance(error, errors):
        return DatabaseError(f"{url}: {text}")
    return error


# Calls


class TimeLimit:
    """The boundary of every call into the engine: how long it may take, and Lapse's errors for the engine's."""

    def __init__(self, url: StoreUrl, limit_s: float) -> None:
        self._url = url
        self._limit_s = limit_s

    async def wait_for(self, call: Awaitable[T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            if isinstance(loop, Loop):
                loop.limit_s = self._limit_s
                try:
                    return await call
                finally:
                    loop.limit_s = Loop.limit_s
            return await self._in_task(call, loop)
        except LapseError:
            raise
        except TimeoutError as error:
            raise DatabaseUnavailable(
                f"{self._url}: the engine gave no answer for {self._limit_s:g} s; a write may or may not be stored",
                hint="is the disk full, or the object store unreachable? open(..., timeout=) sets the limit",
            ) from error
        except Exception as error:
            raise translate(self._url, error) from error

    async def _in_task(self, call: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
        """What asyncio.timeout() does, in less than half of its time, which would be a tenth of a get."""
        task, late = asyncio.current_task(), list[bool]()
        assert task is not None
        cancelling = task.cancelling()
        timer = loop.call_later(self._limit_s, _give_up, task, late)
        try:
            return await call
        except asyncio.CancelledError:
            if late and task.uncancel() <= cancelling:
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()


def _give_up(task: asyncio.Task[Any], late: list[bool]) -> None:
    late.append(True)
    task.cancel()


@cache
def quick(method: Any) -> Any:
    """A method of the binding that hands bytes over at once. The binding's own copies them one by one, in Python: half
    of a put, and three quarters of a row in a batch. It is a copy of the method, so that nothing changes for others in
    the process who use the binding; one of another make is left as it is."""
    names = getattr(method, "__globals__", {})
    if _BYTES not in names or not hasattr(names.get(_BUFFER), "alloc"):
        return method
    converter: Any = names[_BYTES]
    new_buffer = names[_BUFFER].alloc

    class Bytes(converter):  # type: ignore[misc]
        @staticmethod
        def lower(value: bytes) -> Any:
            """The length, in four bytes, and the value: in a buffer of the engine's, which frees it."""
            whole = len(value).to_bytes(4, "big", signed=True) + value
            buffer = new_buffer(len(whole))
            memmove(buffer.data, whole, len(whole))
            buffer.len = len(whole)
            return buffer

    return FunctionType(method.__code__, {**names, _BYTES: Bytes}, method.__name__)


@cache
def _batch_class() -> Any:
    batch = load().WriteBatch
    methods = {name: quick(getattr(batch, name)) for name in ("put", "put_with_options", "delete")}
    return type(batch.__name__, (batch,), methods)


def new_batch() -> Any:
    return _batch_class()()


class Guarded:
    """An object of the engine whose calls all have the limit, and those of what it answers with."""

    def __init__(self, raw: Any, limit: TimeLimit) -> None:
        self._raw = raw
        self._limit = limit

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raw, limit, is_guarded = self._raw, self._limit, name in _GUARDED_ANSWERS
        method = quick(getattr(type(raw), name))

        async def call(*args: Any) -> Any:
            answer = await limit.wait_for(method(raw, *args))
            return Guarded(answer, limit) if is_guarded else answer

        setattr(self, name, call)
        return call


# Places


def object_store(url: StoreUrl) -> tuple[Any, str]:
    """The object store and the database's path inside it."""
    slatedb = load()
    if url.remote is not None:
        parts = urlsplit(url.remote)
        return slatedb.ObjectStore.resolve(f"{parts.scheme}://{parts.netloc}"), parts.path.strip("/")
    kinds, build = slatedb.ObjectStoreType, slatedb.ObjectStoreBuilder.from_env
    if url.path is None:
        return build(kinds.IN_MEMORY).build(), "lapse"
    builder = build(kinds.LOCAL)
    builder.with_config("local_path", str(url.path.parent))
    return builder.build(), url.path.name


def settings(url: StoreUrl) -> Any:
    result = load().Settings.default()
    poll = _LOCAL_POLL if url.remote is None else _REMOTE_POLL
    result.set("compactor_options.checkpoint_lifetime", f'"{COMPACTOR_CHECKPOINT_S}s"')
    for name in ("poll_interval", "worker.compactions_poll_interval", "commit_compacted_interval"):
        result.set(f"compactor_options.{name}", poll)
    return result


# Keys


def meta_key(name: bytes) -> bytes:
    return RESERVED + name


def bucket_prefix(id: int) -> bytes:
    return BUCKET_MARK + id.to_bytes(BUCKET_PREFIX_BYTES - 1, "big")


SEGMENT = bucket_prefix(0)


def prefix_length(key: bytes) -> int | None:
    """Which part of a key names its segment; no segment's name begins with another's."""
    wanted = BUCKET_PREFIX_BYTES if key[:1] == BUCKET_MARK else len(RESERVED)
    return wanted if len(key) >= wanted else None


def extractor() -> Any:
    base = load().PrefixExtractor

    class Segments(base):  # type: ignore[misc,valid-type]
        """An exception in here would close the database, so nothing in here can raise."""

        def name(self) -> str:
            return EXTRACTOR_NAME

        def prefix_len(self, target: Any) -> int | None:
            return prefix_length(target.key if target.is_point() else target.prefix)

    return Segments()


# Files


def lock_for_writing(url: StoreUrl) -> ExitStack:
    """Keeps a second writer out of a local store, until it is closed. SlateDB alone would let it in and cut off the
    first."""
    lock = ExitStack()
    if url.path is not None:
        url.path.mkdir(parents=True, exist_ok=True)
        path = url.path / LOCK_FILE
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        lock.callback(os.close, file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise store_locked(url, lock_owner(path)) from error
    return lock


def remove_half_written(path: Path) -> None:
    """Remove the unfinished files of a writer that was killed; call it only while nothing is being written."""
    for file in data_files(path):
        if _HALF_WRITTEN.search(file.name):
            file.unlink(missing_ok=True)


def data_files(path: Path, parts: tuple[str, ...] = ("wal", "compacted")) -> list[Path]:
    """Files that hold rows. An empty one is how a writer says in the log that it took over."""
    found = []
    for file in (file for part in parts for file in (path / part).glob("**/*")):
        try:
            if file.is_file() and file.stat().st_size:
                found.append(file)
        except FileNotFoundError:
            continue
    return found
