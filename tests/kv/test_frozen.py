"""Snapshots and transactions: writes and time stop for them, and for nobody else."""

from __future__ import annotations

import gc
from datetime import timedelta

import pytest

from lapse.clock import ManualClock
from lapse.errors import InvalidValue, StoreClosed, TransactionConflict, Unsupported
from lapse.kv import Store
from tests.kv.conftest import Kind

HOUR = timedelta(hours=1)
MANY = [(b"k%05d" % i, b"v") for i in range(3000)]


def test_a_snapshot_keeps_rows_that_expire_meanwhile(store: Store, clock: ManualClock) -> None:
    store.put_many(MANY, ttl="1 hour")
    with store.snapshot() as snapshot:
        clock.advance(2 * HOUR)
        assert store.get(b"k00001") is None
        assert snapshot.get(b"k00001") == b"v"
        assert list(snapshot.scan()) == MANY
        meta = snapshot.meta(b"k00001")
        assert meta is not None
        assert meta.remaining == HOUR


def test_a_snapshot_does_not_see_later_writes(store: Store, clock: ManualClock) -> None:
    store.put(b"changed", b"old")
    store.put(b"deleted", b"old")
    with store.snapshot() as snapshot:
        clock.advance(2 * HOUR)
        store.put(b"changed", b"new")
        store.put(b"added", b"new")
        store.delete(b"deleted")
        assert snapshot.get(b"changed") == b"old"
        assert snapshot.get(b"added") is None
        assert list(snapshot.scan()) == [(b"changed", b"old"), (b"deleted", b"old")]
        assert list(snapshot.scan(prefix=b"c", limit=1)) == [(b"changed", b"old")]


def test_rows_expired_before_the_snapshot_stay_hidden_in_it(store: Store, clock: ManualClock) -> None:
    store.put(b"k", b"v", ttl="1 hour")
    clock.advance(HOUR)
    with store.snapshot() as snapshot:
        assert snapshot.get(b"k") is None
        assert list(snapshot.scan()) == []
        assert snapshot.get(b"k", include_expired=True) == b"v"


@pytest.mark.parametrize("within", [None, "10 seconds"])
def test_a_purge_takes_nothing_from_an_open_snapshot(store: Store, clock: ManualClock, within: str | None) -> None:
    store.put_many([(b"gone%d" % i, b"payload-%08d" % i) for i in range(50)], ttl="1 hour")
    clock.advance(HOUR)
    store.put_many(MANY, ttl="1 hour")
    snapshot = store.snapshot()
    clock.advance(2 * HOUR)
    result = store.purge(within=within)
    assert result.purged == 50
    assert result.held == len(MANY)
    assert not result.complete
    assert list(snapshot.scan()) == MANY
    assert snapshot.get(b"k00007") == b"v"
    snapshot.close()
    result = store.purge(within=within)
    assert (result.purged, result.held, result.complete) == (len(MANY), 0, True)


def test_a_forgotten_snapshot_holds_nothing(store: Store, clock: ManualClock) -> None:
    store.put(b"k", b"v", ttl="1 hour")
    store.snapshot()
    clock.advance(HOUR)
    assert store.purge().purged == 1


def test_a_purge_does_not_wait_for_a_forgotten_snapshot_that_is_collected_meanwhile(store: Store) -> None:
    """Wherever in the look at open snapshots the garbage collection runs that closes one."""
    inner, before = store._inner, gc.get_threshold()
    try:
        for allocations in range(1, 20):
            gc.disable()
            gc.collect()
            cycle: list[object] = [store.snapshot()]
            cycle.append(cycle)
            del cycle
            gc.set_threshold(gc.get_count()[0] + allocations)
            gc.enable()
            inner.cutoff_ms()
    finally:
        gc.enable()
        gc.set_threshold(*before)
    gc.collect()
    assert inner.open_snapshots() == []


def test_a_closed_snapshot_cannot_be_read(store: Store) -> None:
    snapshot = store.snapshot()
    snapshot.close()
    snapshot.close()
    with pytest.raises(StoreClosed):
        snapshot.get(b"k")


def test_two_scans_of_one_snapshot_do_not_disturb_each_other(store: Store) -> None:
    store.put_many(MANY)
    with store.snapshot() as snapshot:
        first, second = snapshot.scan(), snapshot.scan(b"k01000")
        pairs = [(next(first), next(second)) for _ in range(2000)]
        assert [a for a, _ in pairs] == MANY[:2000]
        assert [b for _, b in pairs] == MANY[1000:]
        assert snapshot.get(b"k00003") == b"v"


class TestTransactions:
    @pytest.fixture(autouse=True)
    def has_transactions(self, kind: Kind, store: Store) -> None:
        if not kind.transactions:
            with pytest.raises(Unsupported):
                store.transaction()
            pytest.skip("no transactions here, and refused with an error")

    def test_commit_and_rollback(self, store: Store) -> None:
        with store.transaction() as transaction:
            transaction.put(b"k", b"v")
            assert transaction.get(b"k") == b"v"
            assert store.get(b"k") is None
        assert store.get(b"k") == b"v"
        with pytest.raises(ZeroDivisionError), store.transaction() as transaction:
            transaction.delete(b"k")
            raise ZeroDivisionError
        assert store.get(b"k") == b"v"

    def test_time_stands_still(self, store: Store, clock: ManualClock) -> None:
        store.put(b"k", b"v", ttl="1 hour")
        transaction = store.transaction()
        clock.advance(2 * HOUR)
        store.purge(within="5 seconds")
        assert transaction.get(b"k") == b"v"
        assert list(transaction.scan()) == [(b"k", b"v")]
        transaction.put(b"own", b"w", ttl="1 hour")  # an hour of the transaction's time
        assert transaction.get(b"own") == b"w"
        transaction.commit()
        assert store.get(b"own") is None

    def test_a_conflict_is_an_error_and_writes_nothing(self, store: Store) -> None:
        store.put(b"k", b"1")
        transaction = store.transaction()
        assert transaction.get(b"k") == b"1"
        transaction.put(b"other", b"x")
        store.put(b"k", b"2")
        with pytest.raises(TransactionConflict):
            transaction.commit()
        assert store.get(b"other") is None

    def test_bad_input_leaves_the_transaction_usable(self, store: Store) -> None:
        with store.transaction() as transaction:
            with pytest.raises(InvalidValue):
                transaction.put(b"", b"v")
            with pytest.raises(InvalidValue):
                transaction.put(b"k", b"v", ttl=timedelta(0))
            transaction.put(b"k", b"v")
        assert store.get(b"k") == b"v"

    def test_an_ended_transaction_is_over(self, store: Store) -> None:
        transaction = store.transaction()
        transaction.commit()
        with pytest.raises(StoreClosed):
            transaction.get(b"k")
        transaction.rollback()

    def test_it_reads_its_own_writes(self, store: Store) -> None:
        with store.transaction() as transaction:
            transaction.put(b"k", b"a")
            transaction.put(b"k", (transaction.get(b"k") or b"") + b"b")
        assert store.get(b"k") == b"ab"
