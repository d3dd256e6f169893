"""What is made of the measurements: exponents, charts and the page's tables."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from bench import page
from bench.charts import Bar, bar_chart
from bench.growth import fitted_exponent


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law(power: float) -> None:
    assert fitted_exponent([(size, 3 * size**power) for size in (10.0, 100.0, 1_000.0)]) == pytest.approx(power)


def test_a_chart_is_well_formed_and_escapes() -> None:
    text = bar_chart(
        "a < b", [Bar(label="Lapse & co", value=3, text="3", low=1, high=4), Bar(label="x", value=0, text="")]
    )
    assert ElementTree.fromstring(text).tag.endswith("svg")


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    text = f"before\n{page.BEGIN.format('x y')}\nold\n{page.END}\nafter {page.END}"
    assert (
        page._replaced(text, "x y", "new") == f"before\n{page.BEGIN.format('x y')}\nnew\n{page.END}\nafter {page.END}"
    )
    assert page._replaced(text, "unknown", "new") == text


def _row(contender: str, seconds: float) -> dict[str, Any]:
    shape = {"rows": 10, "expired_percent": 10.0, "key": "bigint", "indexes": 1}
    shape |= {"expiry_index": False, "scattered": True}
    return {"shape": shape, "contender": contender, "rows_per_second": 1, "seconds": seconds, "expired": 1}


def test_ratios_are_of_times() -> None:
    rows = [_row("Lapse", 2.0), _row("one DELETE", 1.0), _row("references' loop", 8.0)]
    measured = {"axes": {"found": rows, "under": {"cpus": 2, "load_average": 0.0}}}
    assert "| 0.50x | 4.00x |" in page._axes("sqlite", measured)


def test_an_aim_is_judged_by_what_was_measured() -> None:
    rows = [_row("Lapse", 2.0) | {"hold_p95_ms": 14.9}, _row("one DELETE", 1.5)]
    told = page._aims({"sqlite": {"base": {"found": rows}}})
    assert "| SQLite: speed of one DELETE | at least 0.90x | 0.75x | no |" in told
    assert "| SQLite: the write lock is held, p95 | at most 15 ms | 15 ms | yes |" in told
    assert "PostgreSQL" not in told


def test_aims_of_idle_runs_and_of_applications() -> None:
    idle = [_row("Lapse", 1.1), _row("SELECT count(*)", 1.0)]
    contenders = [{"contender": "no job", "p99_ms": 1.0}, {"contender": "Lapse gentle", "p99_ms": 2.0}]
    told = page._aims({"postgres": {"idle": {"found": idle}, "foreground": {"found": {"contenders": contenders}}}})
    assert "| at most 1.20x | 1.10x | yes |" in told
    assert "| at most 1.40x | 2.00x | no |" in told


def test_runs_at_the_old_end_are_compared_with_those_without_an_index() -> None:
    blind = [_row("one DELETE", 1.0), _row("Lapse", 2.0)]
    led = [row | {"shape": row["shape"] | {"brin": True}, "seconds": row["seconds"] / 4} for row in blind]
    told = page._skip("postgres", {"skip": {"found": blind + led, "under": {"cpus": 2, "load_average": 0.0}}})
    assert "BRIN index on the expiry | 250 ms (0.25x) | 500 ms (0.25x) |" in told


def test_key_value_stores_are_told_by_what_they_did() -> None:
    found = {
        "rows": 10,
        "rounds": 3,
        "rows_per_second": {"bare": {"put": 1000.0, "get": 2000.0}, "Lapse": {"put": 900.0, "purge": 5.0}},
        "ratios": {"Lapse / bare": {"put": 0.9}},
        "ratios_of_processor_time": {"Lapse / bare": {"put": 0.8}},
        "purges": {"one row expired": 0.05},
        "by_turns": {"Lapse": {"put": 0.7, "batch put": 0.9, "get": 0.8, "miss": 1.0, "scan": 0.5}},
    }
    told = page._kv({"found": found, "under": {"cpus": 2, "load_average": 0.0}})
    assert "| bare | 1,000 |  |  | 2,000 |" in told
    assert "| one row expired | 0.05 |" in told
    assert "| Lapse | 0.70x | 0.90x | 0.80x | 1.00x | 0.50x |" in told
    assert "| Lapse / bare | 0.80x (0.90x) |" in told


def test_the_front_page_tells_the_base_shape_of_each_engine() -> None:
    rows = [_row("Lapse", 2.0) | {"hold_p95_ms": 15.9}, _row("one DELETE", 1.0)]
    rows += [_row("references' loop", 4.0), _row("LIMIT loop", 6.0)]
    told = page._summary({"postgres": {}, "mariadb": {}, "sqlite": {"base": {"found": rows}}})
    assert told.splitlines()[2:] == ["| SQLite, 10 rows, 10 % expired | 0.50x | 2.00x | 3.00x | 16 ms |"]


def test_archives_have_a_table_for_each_shape_and_aims_for_a_tenth() -> None:
    tenth = [_row("Lapse", 1.0), _row("Lapse to a table", 1.6), _row("pt-archiver --dest", 4.0)]
    half = [row | {"shape": row["shape"] | {"expired_percent": 50.0}, "seconds": 1.0} for row in tenth]
    found = [row | {"archive_bytes": 300} for row in (*half, *tenth)]
    part = {"archive": {"found": found, "under": {"cpus": 2, "load_average": 0.0}}}
    told = page._archive("mariadb", part)
    assert "10 rows, 10 % expired" in told and "10 rows, 50 % expired" in told
    assert "| Lapse to a table | 1 | 0.62x | 300 |" in told and "| Lapse to a table | 1 | 1.00x | 300 |" in told
    aims = page._aims({"mariadb": part})
    assert "| at least 0.50x | 0.62x | yes |" in aims and "| at least 2.00x | 2.50x | yes |" in aims
