"""The runner and the gate."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lapse.kv
from lapse.errors import StoreClosed
from lapse.kv.runner import Runner
from lapse.kv.slatedb.store import Gate, Passage

pytest.importorskip("slatedb", reason="needs the extra kv")


class TestRunner:
    def test_short_work_does_not_wait_for_long_work(self) -> None:
        runner, started, release = Runner(), threading.Event(), asyncio.Event()

        async def long() -> str:
            started.set()
            await release.wait()
            return "long"

        async def short() -> str:
            release.set()
            return "short"

        with ThreadPoolExecutor(max_workers=1) as pool:
            waiting = pool.submit(runner.run, long())
            started.wait()
            assert runner.run(short()) == "short"
            assert waiting.result() == "long"
        runner.close()

    def test_work_goes_on_when_the_driver_leaves_first(self) -> None:
        runner = Runner()

        async def nap(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return seconds

        with ThreadPoolExecutor(max_workers=8) as pool:
            naps = [0.05, 0.01, 0.03, 0.02, 0.04, 0.01, 0.02, 0.06]
            assert list(pool.map(lambda seconds: runner.run(nap(seconds)), naps)) == naps
        runner.close()

    def test_errors_reach_the_thread_that_called(self) -> None:
        runner = Runner()

        async def fail(number: int) -> None:
            await asyncio.sleep(0.001)
            raise KeyError(number)

        def call(number: int) -> int:
            with pytest.raises(KeyError) as error:
                runner.run(fail(number))
            return int(error.value.args[0])

        with ThreadPoolExecutor(max_workers=4) as pool:
            assert list(pool.map(call, range(40))) == list(range(40))
        runner.close()
        assert runner.is_closed
        runner.close()

    def test_a_limit_is_told_to_the_coroutine(self) -> None:
        """Which puts away what it has; another one goes on meanwhile."""
        runner, log = Runner(), list[str]()

        async def waits() -> None:
            loop: Any = asyncio.get_running_loop()
            loop.limit_s = 0.01
            try:
                await loop.create_future()
            finally:
                loop.limit_s = None
                await asyncio.sleep(0.001)
                log.append("put away")

        with pytest.raises(TimeoutError):
            runner.run(waits())
        assert log == ["put away"]
        assert runner.run(asyncio.sleep(0, "next")) == "next"
        runner.close()
        with pytest.raises(StoreClosed):
            runner.run(waits())


def test_a_passage_is_over_with_what_made_it() -> None:
    """An interrupt of the user may come after it was entered and before it can be left."""
    gate, runner = Gate(), Runner()

    def lost(passage: Passage) -> None:
        runner.run(passage.__aenter__())

    lost(gate.beside())
    lost(gate.alone())
    assert (gate.is_taken, gate.passing) == (False, set())
    runner.close()


def test_bytes_are_handed_over_whole_and_for_this_store_alone() -> None:
    from slatedb import uniffi as slatedb

    before = slatedb.Db.put, dict(slatedb.Db.put.__globals__)
    with lapse.kv.open("slatedb:memory:") as store:
        rows = {b"%d" % size: bytes(number % 256 for number in range(size)) for size in (0, 1, 17, 255, 256, 70_000)}
        for key, value in rows.items():
            store.put(key, value)
            store.put(b"ttl" + key, value, ttl="1 hour")
        store.put_many([(b"many" + key, value) for key, value in rows.items()])
        assert all(store.get(kind + key) == value for key, value in rows.items() for kind in (b"", b"ttl", b"many"))
    assert before == (slatedb.Db.put, slatedb.Db.put.__globals__)


def test_the_gate_lets_one_alone_and_others_together() -> None:
    async def run() -> list[str]:
        gate, log = Gate(), list[str]()

        async def plain(name: str) -> None:
            async with gate.beside():
                log.append(f"{name} in")
                await asyncio.sleep(0.01)
                log.append(f"{name} out")

        async def alone() -> None:
            async with gate.alone():
                log.append("alone in")
                await asyncio.sleep(0.01)
                log.append("alone out")

        await asyncio.gather(plain("a"), plain("b"), alone(), plain("c"))
        return log

    log = asyncio.run(run())
    assert log[:2] == ["a in", "b in"]
    assert log.index("alone out") == log.index("alone in") + 1
