"""Batch sizes follow the time that statements take, between a floor and what the user set."""

from __future__ import annotations

import pytest

from lapse.clock import starved_seconds
from lapse.model.policy import Policy
from lapse.runner.batching import MAX_ROWS, MIN_ROWS, WARM_UP, BatchSizer, served_seconds
from tests.unit.runner.build import settings

TARGET = 0.02


def sizer(start: int = 1000, ceiling: int = MAX_ROWS, *, adaptive: bool = True) -> BatchSizer:
    return BatchSizer(target_seconds=TARGET, start=start, ceiling=ceiling, adaptive=adaptive)


def work(found: BatchSizer, rows_per_second: float, statements: int) -> int:
    for _ in range(statements):
        found.record(found.size, found.size / rows_per_second)
    return found.size


@pytest.mark.parametrize("rows_per_second", [20_000, 100_000, 1_000_000])
def test_the_size_settles_at_what_the_target_time_allows(rows_per_second: int) -> None:
    assert work(sizer(), rows_per_second, 60) == pytest.approx(rows_per_second * TARGET, rel=0.05)


def test_waiting_for_a_processor_of_this_machine_is_not_the_servers_time() -> None:
    assert served_seconds(0.4, 1.0, 0.5) == pytest.approx(0.2)
    assert served_seconds(0.4, 1.0, 0.0) == 0.4
    # A clock of the kernel's that is behind, or ahead, makes no statement quicker than it can be.
    assert 0 < served_seconds(0.4, 1.0, 2.0) < 0.1 and served_seconds(0.4, 1.0, -1.0) == 0.4


def test_how_long_a_thread_has_waited_for_a_processor_only_grows() -> None:
    before = starved_seconds()
    assert 0.0 <= before <= starved_seconds()


def test_one_slow_statement_in_ten_does_not_make_batches_small() -> None:
    """Each has a fixed cost, as on a server that is asked over a network."""
    found, rate = sizer(start=100), 100_000.0
    sizes = []
    for number in range(200):
        slow = 50.0 if number % 10 == 0 else 1.0
        found.record(found.size, slow * (0.1 * TARGET + found.size / rate))
        sizes.append(found.size)
    assert sorted(sizes[20:])[len(sizes) // 4] > 0.25 * rate * TARGET


def test_a_server_that_becomes_slow_is_given_less_within_a_few_statements() -> None:
    found = sizer()
    fast = work(found, 1_000_000, 40)
    assert work(found, 50_000, 8) < fast / 5


def test_it_never_halves_more_than_once_per_statement() -> None:
    found = sizer(start=8000)
    found.record(8000, 60.0)
    assert found.size == 4000


def test_growth_is_slow_once_warm() -> None:
    found = sizer(start=2000)
    work(found, 100_000, WARM_UP + 10)
    before = found.size
    found.record(before, TARGET * 0.5)
    assert before < found.size <= before * 1.2 + 1


@pytest.mark.parametrize(("share", "size"), [(0.15, 401), (0.01, 401)])
def test_a_statement_far_below_the_target_lets_it_grow_faster(share: float, size: int) -> None:
    found = sizer(start=100)
    found.record(100, TARGET * share)
    assert found.size == size


def test_a_quick_statement_that_found_little_teaches_nothing() -> None:
    found = sizer(start=1000)
    found.record(10, TARGET / 10)
    found.record(0, 5.0)
    assert found.size == 1000


def test_a_slow_statement_teaches_even_if_it_found_little() -> None:
    found = sizer(start=1000)
    found.record(10, TARGET * 10)
    assert found.size == 500


def test_adapting_stops_at_the_floor_and_halving_at_one() -> None:
    found = sizer(start=150)
    for _ in range(5):
        found.record(found.size, 10.0)
    assert found.size == MIN_ROWS
    for _ in range(10):
        found.halve()
    assert found.size == 1


def test_what_is_not_adaptive_stays() -> None:
    found = sizer(start=700, adaptive=False)
    found.record(700, 10.0)
    assert found.size == 700
    found.halve()
    assert found.size == 350


def test_a_size_that_the_user_set_is_a_hard_bound() -> None:
    found = BatchSizer.for_policy(Policy(expression="at", delete_batch_size=50), settings(), TARGET)
    assert work(found, 1_000_000, 20) == 50


def test_the_smaller_of_two_sizes_bounds() -> None:
    policy = Policy(expression="at", select_batch_size=80, delete_batch_size=300)
    assert BatchSizer.for_policy(policy, settings(), TARGET).size == 80


def test_without_a_size_the_setting_is_where_it_starts() -> None:
    current = settings({"tidb_ttl_delete_batch_size": "333"})
    assert BatchSizer.for_policy(Policy(expression="at"), current, TARGET).size == 333
    fixed = BatchSizer.for_policy(Policy(expression="at", adaptive=False), current, TARGET)
    assert (fixed.size, fixed.ceiling) == (333, 333)


def test_finding_and_deleting_are_one_statement_so_the_smaller_setting_is_where_it_starts() -> None:
    current = settings({"tidb_ttl_delete_batch_size": "333", "tidb_ttl_scan_batch_size": "50"})
    assert BatchSizer.for_policy(Policy(expression="at"), current, TARGET).size == 50
    chosen = Policy(expression="at", select_batch_size=70)
    assert BatchSizer.for_policy(chosen, current, TARGET).size == 70


def test_a_later_task_starts_from_what_an_earlier_one_learned() -> None:
    found = BatchSizer.for_policy(Policy(expression="at"), settings(), TARGET, learned=9_000)
    assert found.size == 9_000
    assert (
        BatchSizer.for_policy(Policy(expression="at", adaptive=False), settings(), TARGET, learned=9_000).size < 9_000
    )


def test_what_was_learned_still_obeys_the_bound() -> None:
    policy = Policy(expression="at", delete_batch_size=100)
    assert BatchSizer.for_policy(policy, settings(), TARGET, learned=9_000).size == 100


def test_what_a_server_has_fitted_is_gone_on_from() -> None:
    found = sizer()
    found.adopt(5_000, TARGET / 5_000)
    assert found.size == 5_000
    # One that takes twice as long is one of several.
    found.record(5_000, 2 * TARGET)
    assert 3_000 < found.size < 5_000
    found.adopt(1, 0.0)
    assert found.size == MIN_ROWS
