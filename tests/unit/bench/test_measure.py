"""Contenders are compared on equal rows, and one that does not do its work is found out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from sqlalchemy import make_url

from lapse.bench import STANDARD, BenchTable, Contender, Measurement, Run, Shape, compare, lapse, table_for
from lapse.bench.contenders import Timed, references_loops, timed
from lapse.bench.measure import WrongRows, percentile
from lapse.errors import Unsupported


@pytest.fixture
def table(tmp_path: Path) -> BenchTable:
    return table_for(make_url(f"sqlite:///{tmp_path / 'bench.db'}"), "rows")


@pytest.mark.parametrize("key", ["bigint", "uuid", "composite"])
def test_every_contender_leaves_the_rows_that_have_not_expired(table: BenchTable, key: str) -> None:
    shape = Shape(rows=1_500, key=key, indexes=2)
    results = compare(table, {shape: [*STANDARD, lapse()]}, rounds=1)
    assert [result.contender for result in results] == ["one DELETE", "references' loop", "LIMIT loop", "Lapse"]
    assert {result.runs[0].expired for result in results} == {150}
    assert all(result.rate > 0 and result.runs[0].holds for result in results)


def test_clients_share_the_work(table: BenchTable) -> None:
    loops = Contender(name="loops", run=timed(references_loops(2)))
    (result,) = compare(table, {Shape(rows=900, indexes=0): [loops]}, rounds=2)
    assert len(result.runs) == 2


@pytest.mark.parametrize("percent", [0.0, 1.0, 50.0, 100.0])
def test_shares_are_exact_enough(table: BenchTable, percent: float) -> None:
    for scattered in (True, False):
        table.create(Shape(rows=2_000, expired_percent=percent, scattered=scattered, expiry_index=True))
        assert table.contents().expired == pytest.approx(20 * percent, abs=2)


def test_the_same_rows_each_time(table: BenchTable) -> None:
    seen = set()
    for _ in range(2):
        table.create(Shape(rows=500))
        seen.add(table.contents())
    assert len(seen) == 1


def test_an_idle_contender_is_found_out(table: BenchTable) -> None:
    idle = Contender(name="idle", run=lambda table: Timed(seconds=1.0))
    with pytest.raises(WrongRows, match="idle left"):
        compare(table, {Shape(rows=100): [idle]}, rounds=1)


def test_one_that_takes_too_much_is_found_out(table: BenchTable) -> None:
    def everything(table: BenchTable, clock: Timed) -> None:
        with table.cursor() as cursor:
            cursor.execute(f"DELETE FROM {table.name}")

    with pytest.raises(WrongRows):
        compare(table, {Shape(rows=100): [Contender(name="greedy", run=timed(everything))]}, rounds=1)


def test_medians_and_spread() -> None:
    runs = tuple(Run(expired=100, seconds=seconds, holds=(seconds,)) for seconds in (2.0, 1.0, 4.0))
    result = Measurement(shape=Shape(rows=1_000), contender="x", runs=runs)
    assert (result.seconds, result.rate, result.spread) == (2.0, 50.0, (0.5, 2.0))
    assert result.hold(1.0) == 4.0


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 1.0) == 3.0
    assert math.isnan(percentile([], 0.5))


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"rows": 1, "key": "text"}, {"rows": 1, "expired_percent": 101}])
def test_impossible_shapes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"shape|keys"):
        Shape(**wrong)  # type: ignore[arg-type]


def test_an_engine_without_a_table_is_refused() -> None:
    with pytest.raises(Unsupported):
        table_for(make_url("oracle://localhost/x"), "rows")


def test_an_index_that_the_engine_does_not_have_is_refused(table: BenchTable) -> None:
    with pytest.raises(Unsupported, match="BRIN"):
        table.create(Shape(rows=10, brin=True))
