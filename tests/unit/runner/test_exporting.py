"""Pieces of the exporter that need no database."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lapse.model.archive import label as label_of
from lapse.model.table import TableName
from lapse.runner.exporting import _joined, _ranges


def label(name: str, schema: str | None = None) -> str:
    return label_of(TableName(name, schema))


def test_two_tables_never_have_one_label() -> None:
    names = [("c", "a.b"), ("b.c", "a"), ("a.b.c", None), ('"a".b', None), ("b", '"a"'), ("b", "a"), ('"a.b"', None)]
    assert len({label(*name) for name in names}) == len(names)
    assert label("events", "public") == "public.events"


@given(st.sets(st.integers(1, 200), min_size=1), st.integers(1, 199))
def test_ranges_hold_the_numbers_and_no_other(numbers: set[int], cut: int) -> None:
    growing = sorted(numbers)
    pages = [page for page in (growing[:cut], growing[cut:]) if page]
    ranges: list[tuple[int, int]] = []
    for page in pages:
        ranges = _joined(ranges, _ranges([str(number) for number in page]))
    assert [number for first, last in ranges for number in range(first, last + 1)] == growing
    assert len(ranges) == sum(number - 1 not in numbers for number in numbers)
