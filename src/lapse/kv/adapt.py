"""From the asynchronous interface, which both engines implement, to the synchronous one, and for RocksDB back again.

The classes are made from the interface itself, so a method that is added to it is adapted, too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from itertools import chain
from typing import Any, cast

from lapse.errors import StoreClosed
from lapse.kv.abc import Batch, Snapshot, Store, Transaction
from lapse.kv.base import AsyncBatch, AsyncStore
from lapse.kv.reads import AsyncSnapshot, Scan
from lapse.kv.runner import Direct, Runner
from lapse.kv.slatedb.transaction import AsyncTransaction

_PAIRS = ((Store, AsyncStore), (Snapshot, AsyncSnapshot), (Transaction, AsyncTransaction), (Batch, AsyncBatch))

Rows = Iterator[tuple[bytes, bytes]]


def blocking(open_store: Callable[[], Coroutine[Any, Any, AsyncStore]], runner: Runner | Direct) -> Store:
    """A store for code that is not asynchronous."""
    try:
        inner = runner.run(open_store())
        adapted = _adapted(inner, _BLOCKING, runner)
    except BaseException:
        runner.close()
        raise
    vars(adapted).update(inner.quick())
    return cast(Store, adapted)


def threaded(store: AsyncStore) -> AsyncStore:
    """A store for asyncio whose coroutines, which never wait, run in threads."""
    return cast(AsyncStore, _adapted(store, _THREADED, Direct()))


def _adapted(found: Any, classes: dict[type, type], runner: Runner | Direct) -> Any:
    """Stores, snapshots, transactions and batches are adapted; what else a call answers with is handed on."""
    for base, made in classes.items():
        if isinstance(found, base):
            return made(found, runner)
    return found


class _Adapter:
    def __init__(self, inner: Any, runner: Any) -> None:
        self._inner = inner
        self._runner = runner
        if isinstance(inner, AsyncBatch):  # collecting waits for nothing
            vars(self).update(put=inner.put, delete=inner.delete)


def _blocking_method(name: str) -> Callable[..., Any]:
    def call(self: _Adapter, *args: Any, **options: Any) -> Any:
        runner = self._runner
        if runner.is_closed:
            raise StoreClosed("the store is closed")
        if name == "put_many" and type(args[0]) is not list:  # nothing of the caller's runs in the loop
            args = (list(args[0]), *args[1:])
        answer = getattr(self._inner, name)(*args, **options)
        if inspect.iscoroutine(answer):
            answer = runner.run(answer)
        return answer if answer is None or type(answer) is bytes else _adapted(answer, _BLOCKING, runner)

    return call


def _blocking_end(name: str) -> Callable[..., Any]:
    """Ending what a closed store has ended is no error."""

    def end(self: _Adapter) -> None:
        if not self._runner.is_closed:
            try:
                self._runner.run(getattr(self._inner, name)())
            finally:
                if isinstance(self, Store):
                    self._runner.close()
                    for quick in ("get", "put"):  # they would keep the engine alive
                        vars(self).pop(quick, None)

    return end


def _blocking_scan(self: _Adapter, *args: Any, **options: Any) -> Rows:
    """The loop is entered once per chunk, not once per row."""
    runner = self._runner
    if runner.is_closed:
        raise StoreClosed("the store is closed")
    scan: Scan = self._inner.scan(*args, **options)
    first = runner.run(scan.fill())  # now, not at the first row: this is when the scan begins

    def chunks(rows: Rows | None) -> Iterator[Rows]:
        while rows is not None:
            yield rows
            if runner.is_closed:
                raise StoreClosed("the store was closed during this scan")
            rows = runner.run(scan.fill())

    return chain.from_iterable(chunks(first))


def _threaded_method(name: str) -> Callable[..., Any]:
    async def call(self: _Adapter, *args: Any, **options: Any) -> Any:
        work = getattr(self._inner, name)(*args, **options)
        return _adapted(await asyncio.to_thread(self._runner.run, work), _THREADED, self._runner)

    return call


def _plain_method(name: str) -> Callable[..., Any]:
    def call(self: _Adapter, *args: Any, **options: Any) -> Any:
        return _adapted(getattr(self._inner, name)(*args, **options), _THREADED, self._runner)

    return call


async def _threaded_scan(self: _Adapter, *args: Any, **options: Any) -> AsyncIterator[tuple[bytes, bytes]]:
    """Read in threads, judged here when handed out."""
    scan: Scan = self._inner.scan(*args, **options)
    while (rows := await asyncio.to_thread(self._runner.run, scan.fill())) is not None:
        for found in rows:
            yield found


def _property(name: str) -> property:
    return property(lambda self: getattr(self._inner, name))


def _members(pair: tuple[type, type], method: Callable[[str, Any], Any]) -> dict[str, Any]:
    """An adapter for everything that the interface has."""
    here, there = pair
    names: frozenset[str] = here.__abstractmethods__  # type: ignore[attr-defined]
    found = {name: inspect.getattr_static(there, name) for name in names}
    return {name: _property(name) if isinstance(it, property) else method(name, it) for name, it in found.items()}


def _to_blocking(pair: tuple[type, type]) -> type:
    def method(name: str, declared: Any) -> Any:
        if name == "scan":
            return _blocking_scan
        return _blocking_end(name) if name in ("close", "rollback") else _blocking_method(name)

    return type(f"Blocking{pair[0].__name__}", (_Adapter, pair[0]), _members(pair, method))


def _to_threaded(pair: tuple[type, type]) -> type:
    """A virtual subclass: what it would inherit belongs to an engine."""

    def method(name: str, declared: Any) -> Any:
        if name == "scan":
            return _threaded_scan
        return _threaded_method(name) if inspect.iscoroutinefunction(declared) else _plain_method(name)

    there: Any = pair[1]
    with_block = {"__aenter__": there.__aenter__, "__aexit__": there.__aexit__}
    made: type = there.register(type(f"Threaded{there.__name__}", (_Adapter,), _members(pair, method) | with_block))
    return made


_BLOCKING: dict[type, type] = {pair[1]: _to_blocking(pair) for pair in _PAIRS}
_THREADED: dict[type, type] = {pair[1]: _to_threaded(pair) for pair in _PAIRS}
