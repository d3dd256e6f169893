"""The asyncio side: the same behaviour, and many calls at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import lapse.kv.aio
from lapse.errors import DatabaseUnavailable, InvalidValue, StoreClosed, Unsupported
from lapse.kv.slatedb.engine import TimeLimit
from lapse.kv.url import parse
from tests.kv.conftest import Opener

HOUR = timedelta(hours=1)


def test_everything_once(opener: Opener) -> None:
    asyncio.run(everything_once(opener))


async def everything_once(opener: Opener) -> None:
    clock, kind = opener.clock, opener.kind
    options = {"clock": clock, "registry": opener.registry}
    async with await lapse.kv.aio.open(
        opener.url,
        default_ttl="2 hours",
        merge=lambda existing, operand: (existing or b"") + operand,
        clock=clock,
        registry=opener.registry,
    ) as store:
        assert store.url == opener.url
        assert store.default_ttl == 2 * HOUR
        await asyncio.gather(*(store.put(b"k%02d" % i, b"v", ttl="1 hour") for i in range(50)))
        assert await store.put_many([(b"m1", b"v"), (b"m2", b"v")]) == 2
        assert await store.get(b"k07") == b"v"
        meta = await store.meta(b"k07")
        assert meta is not None
        assert meta.remaining == HOUR
        async with store.batch() as batch:
            batch.put(b"b", b"v")
            batch.delete(b"m1")
            assert len(batch) == 2
        assert await store.merge(b"x", b"1") + await store.merge(b"x", b"2") == b"112"
        assert await store.touch(b"b", ttl="3 hours")
        await store.delete(b"x")
        async with await store.snapshot() as snapshot:
            clock.advance(HOUR)
            assert await store.get(b"k07") is None
            assert await snapshot.get(b"k07") == b"v"
            assert len([row async for row in snapshot.scan(prefix=b"k")]) == 50
        assert [key async for key, _ in store.scan()] == [b"b", b"m2"]
        assert [key async for key, _ in store.scan(limit=1, include_expired=True)] == [b"b"]
        if kind.transactions:
            async with await store.transaction() as transaction:
                await transaction.put(b"t", b"v")
                assert await transaction.get(b"t") == b"v"
                assert [key async for key, _ in transaction.scan()] == [b"b", b"m2", b"t"]
            await store.delete(b"t")
        else:
            with pytest.raises(Unsupported):
                await store.transaction()
        with pytest.raises(InvalidValue):
            await store.put(b"", b"v")
        assert (await store.purge(within="10 seconds")).purged == 50
        assert (await store.preview()).rows == 2
        await store.set_default_ttl("1 day")
        assert await store.persist(b"b")
        await store.flush()
    async with await lapse.kv.aio.open(opener.url, read_only=True, **options) as store:  # type: ignore[arg-type]
        assert await store.get(b"b") == b"v"
        assert store.default_ttl == timedelta(days=1)


def test_concurrent_merges_lose_nothing(opener: Opener) -> None:
    async def run() -> None:
        async with await lapse.kv.aio.open(
            opener.url,
            default_ttl="1 day",
            clock=opener.clock,
            merge=lambda existing, operand: b"%d" % (int(existing or 0) + int(operand)),
        ) as store:
            await asyncio.gather(
                *(store.merge(b"n", b"1") for _ in range(40)),
                *(store.put(b"k%d" % i, b"v") for i in range(40)),
            )
            assert await store.get(b"n") == b"40"

    asyncio.run(run())


def test_a_row_that_expires_under_an_open_iterator_is_not_returned(opener: Opener) -> None:
    async def run() -> None:
        async with await lapse.kv.aio.open(opener.url, default_ttl="1 hour", clock=opener.clock) as store:
            await store.put_many([(b"k%04d" % i, b"v") for i in range(2000)])
            await store.put(b"z", b"v", ttl="9 hours")
            rows = aiter(store.scan())
            assert await anext(rows) == (b"k0000", b"v")
            opener.clock.advance(HOUR)
            assert [row async for row in rows] == [(b"z", b"v")]

    asyncio.run(run())


def test_the_synchronous_store_works_inside_an_event_loop(opener: Opener) -> None:
    async def run() -> None:
        with opener() as store:
            store.put(b"k", b"v")
            assert list(store.scan()) == [(b"k", b"v")]

    asyncio.run(run())


def test_a_closed_store_ends_its_scans_with_an_error(opener: Opener) -> None:
    async def close_in_the_middle() -> None:
        store = await lapse.kv.aio.open(opener.url, default_ttl="1 hour", clock=opener.clock)
        await store.put_many([(b"k%04d" % i, b"v") for i in range(5000)])
        ended, rows, more = store.scan(limit=1), store.scan(), store.scan()
        assert [key async for key, _ in ended] == [b"k0000"]
        await anext(rows)
        stream = aiter(more)
        await anext(stream)
        await store.close()
        for interrupted in (rows, stream):
            with pytest.raises(StoreClosed):
                while True:
                    await anext(interrupted)
        assert [row async for row in ended] == []

    asyncio.run(close_in_the_middle())


class TestLimit:
    """Of a call into SlateDB."""

    def test_a_call_without_an_answer_is_an_error(self) -> None:
        async def run() -> None:
            with pytest.raises(DatabaseUnavailable, match="no answer for 0"):
                await TimeLimit(parse("slatedb:memory:"), 0.02).wait_for(asyncio.sleep(60))
            await asyncio.sleep(0.05)  # nothing is left that would cancel this task

        asyncio.run(run())

    def test_who_cancels_or_has_a_shorter_limit_is_obeyed(self) -> None:
        async def run() -> None:
            limit = TimeLimit(parse("slatedb:memory:"), 60)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await limit.wait_for(asyncio.sleep(60))
            task = asyncio.create_task(limit.wait_for(asyncio.sleep(60)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(run())


def test_other_tasks_have_their_turn_during_a_scan(opener: Opener) -> None:
    async def run() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with await lapse.kv.aio.open(opener.url, default_ttl="1 hour", clock=opener.clock) as store:
            await store.put_many([(b"k%05d" % i, b"v") for i in range(5000)])
            task = asyncio.create_task(other())
            before = turns
            assert len([row async for row in store.scan()]) == 5000
            assert turns - before >= 4
            task.cancel()

    asyncio.run(run())
