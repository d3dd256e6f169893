"""The runner and the gate."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lapse.kv.slatedb.store import Gate
from lapse.kv.sync import Runner

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


def test_the_gate_lets_one_alone_and_others_together() -> None:
    async def run() -> list[str]:
        gate, log = Gate(), list[str]()

        async def plain(name: str) -> None:
            async with gate:
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
