"""Against a dictionary with expiry: whatever is done, in any order, a store answers as the model does."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lapse.kv import Snapshot, Store
from tests.kv.conftest import Kind, Opener

KEYS = st.sampled_from([b"a", b"b", b"b\0", b"c", b"\xff"])
VALUES = st.binary(min_size=0, max_size=12)
TTLS = st.sampled_from([1, 20, 60, 61, 90, 200, 600])
"""Minutes."""

Model = dict[bytes, tuple[bytes, float]]
"""Key to value and expiry, in minutes since the start."""


class StoreMachine(RuleBasedStateMachine):
    """`kind` is set by the test; each example has a store of its own."""

    kind: Kind

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lapse-kv-"))
        self.opener = Opener(self.kind, self.folder / "store")
        self.store: Store = self.opener()
        self.model: Model = {}
        self.now = 0.0
        self.snapshot: tuple[Snapshot, dict[bytes, bytes]] | None = None

    def live(self) -> dict[bytes, bytes]:
        return {key: value for key, (value, expiry) in sorted(self.model.items()) if expiry > self.now}

    @rule(key=KEYS, value=VALUES, ttl=TTLS)
    def put(self, key: bytes, value: bytes, ttl: int) -> None:
        self.store.put(key, value, ttl=timedelta(minutes=ttl))
        self.model[key] = (value, self.now + ttl)

    @rule(rows=st.lists(st.tuples(KEYS, VALUES), max_size=4), ttl=TTLS)
    def put_many(self, rows: list[tuple[bytes, bytes]], ttl: int) -> None:
        self.store.put_many(rows, ttl=timedelta(minutes=ttl))
        self.model |= {key: (value, self.now + ttl) for key, value in rows}

    @rule(put=st.tuples(KEYS, VALUES, TTLS), delete=KEYS)
    def batch(self, put: tuple[bytes, bytes, int], delete: bytes) -> None:
        key, value, ttl = put
        with self.store.batch() as batch:
            batch.delete(delete)
            batch.put(key, value, ttl=timedelta(minutes=ttl))
        self.model.pop(delete, None)
        self.model[key] = (value, self.now + ttl)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.store.delete(key)
        self.model.pop(key, None)

    @rule(key=KEYS, ttl=TTLS)
    def touch(self, key: bytes, ttl: int) -> None:
        exists = key in self.live()
        assert self.store.touch(key, ttl=timedelta(minutes=ttl)) == exists
        if exists:
            self.model[key] = (self.model[key][0], self.now + ttl)

    @rule(minutes=st.sampled_from([1, 19, 20, 60, 61, 300]))
    def wait(self, minutes: int) -> None:
        self.opener.clock.advance(timedelta(minutes=minutes))
        self.now += minutes

    @rule()
    def purge(self) -> None:
        self.store.purge()

    @rule()
    def purge_to_the_last_byte(self) -> None:
        result = self.store.purge(within="20 seconds")
        assert result.complete or self.snapshot is not None, result

    @rule()
    def reopen(self) -> None:
        self.forget_snapshot()
        self.store.close()
        self.store = self.opener()

    @precondition(lambda self: self.snapshot is None)
    @rule()
    def take_snapshot(self) -> None:
        self.snapshot = (self.store.snapshot(), self.live())

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def forget_snapshot(self) -> None:
        if self.snapshot is not None:
            self.snapshot[0].close()
            self.snapshot = None

    @invariant()
    def answers_as_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        live = self.live()
        assert dict(self.store.scan()) == live
        for key in (b"a", b"b", b"b\0", b"c", b"\xff"):
            assert self.store.get(key) == live.get(key)
        if self.snapshot is not None:
            snapshot, expected = self.snapshot
            assert dict(snapshot.scan()) == expected
            assert {key: snapshot.get(key) for key in expected} == expected

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.forget_snapshot()
            self.store.close()
            shutil.rmtree(self.folder)


def test_a_store_answers_as_a_dictionary_with_expiry(kind: Kind) -> None:
    machine = type("Machine", (StoreMachine,), {"kind": kind})
    examples = 20 if kind.engine == "rocksdb" else 8
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_the_same_for_longer(kind: Kind) -> None:
    machine = type("Machine", (StoreMachine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=400,
            stateful_step_count=60,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
