"""The same model, with a process that is killed between any two steps."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.kv.conftest import START, Kind
from tests.kv.store_process import ProcessStore

KEYS = st.sampled_from([b"a", b"b", b"c"])
TTLS = st.sampled_from([1, 60, 90, 600])


class CrashMachine(RuleBasedStateMachine):
    kind: Kind

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lapse-kv-"))
        self.now = START
        self.model: dict[bytes, tuple[bytes, object]] = {}
        self.written = 0
        self.open()

    def open(self) -> None:
        self.store = ProcessStore(f"{self.kind.engine}:{self.folder / 'store'}", self.now)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3), ttl=TTLS)
    def put(self, keys: list[bytes], ttl: int) -> None:
        self.written += 1
        value = b"%d" % self.written
        self.store.call("put_many", [(key, value) for key in keys], ttl=timedelta(minutes=ttl))
        self.model |= {key: (value, self.now + timedelta(minutes=ttl)) for key in keys}

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.store.call("delete", key)
        self.model.pop(key, None)

    @rule(minutes=st.sampled_from([1, 60, 200]))
    def wait(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)
        self.store.call("set_time", self.now)

    @rule(within=st.sampled_from([None, "20 seconds"]))
    def purge(self, within: str | None) -> None:
        assert self.store.call("purge", within=within).complete

    @rule()
    def crash(self) -> None:
        """SlateDB promises a write after a flush, RocksDB at once."""
        if self.kind.engine == "slatedb":
            self.store.call("flush")
        self.store.kill()
        self.open()

    @invariant()
    def answers_as_the_model(self) -> None:
        if hasattr(self, "store"):
            live = {key: value for key, (value, expiry) in self.model.items() if expiry > self.now}  # type: ignore[operator]
            assert dict(self.store.call("scan")) == live
            assert {key: value for key in (b"a", b"b", b"c") if (value := self.store.call("get", key))} == live

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)


def test_a_killed_process_changes_no_answer(kind: Kind) -> None:
    machine = type("Machine", (CrashMachine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=2,
            stateful_step_count=12,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
