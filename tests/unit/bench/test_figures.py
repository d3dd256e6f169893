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
