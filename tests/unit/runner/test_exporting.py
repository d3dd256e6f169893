"""Pieces of the exporter that need no database."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.archive.loading import arrow
from lapse.errors import Retryable
from lapse.model.archive import label as label_of
from lapse.model.table import TableName
from lapse.runner.exporting import Page, _ahead, _joined, _ranges


def label(name: str, schema: str | None = None) -> str:
    return label_of(TableName(name, schema))


def test_two_tables_never_have_one_label() -> None:
    names = [("c", "a.b"), ("b.c", "a"), ("a.b.c", None), ('"a".b', None), ("b", '"a"'), ("b", "a"), ('"a.b"', None)]
    assert len({label(*name) for name in names}) == len(names)
    assert label("events", "public") == "public.events"


def _texts(page: list[int]) -> Any:
    return arrow().array([str(number) for number in page])


@pytest.mark.parametrize("column", [_texts, list, lambda page: list(map(str, page))], ids=["array", "numbers", "texts"])
@given(st.sets(st.integers(1, 200), min_size=1), st.integers(1, 199))
def test_ranges_hold_the_numbers_and_no_other(column: Callable[[list[int]], Any], numbers: set[int], cut: int) -> None:
    growing = sorted(numbers)
    pages = [page for page in (growing[:cut], growing[cut:]) if page]
    ranges: list[tuple[int, int]] = []
    for page in pages:
        ranges = _joined(ranges, _ranges(column(page)))
    assert [number for first, last in ranges for number in range(first, last + 1)] == growing
    assert len(ranges) == sum(number - 1 not in numbers for number in numbers)


def _page(number: int) -> Page:
    return [(number, number)], []


def test_a_page_is_read_while_the_one_before_is_in_use() -> None:
    asked: list[int] = []
    second = Event()

    def pages() -> Iterator[Page]:
        for number in range(3):
            asked.append(number)
            if number == 1:
                second.set()
            yield _page(number)

    reading = _ahead(pages())
    assert next(reading) == _page(0)
    assert second.wait(timeout=10)
    assert [*reading] == [_page(1), _page(2)]
    assert asked == [0, 1, 2]


def test_what_goes_wrong_with_a_page_is_raised_where_it_would_be_used() -> None:
    def pages() -> Iterator[Page]:
        yield _page(0)
        raise Retryable("the second")

    reading = _ahead(pages())
    assert next(reading) == _page(0)
    with pytest.raises(Retryable, match="the second"):
        next(reading)


def test_pages_that_are_left_are_not_read_on() -> None:
    asked: list[int] = []

    def pages() -> Iterator[Page]:
        for number in range(100):
            asked.append(number)
            yield _page(number)

    reading = _ahead(pages())
    next(reading)
    reading.close()
    assert asked == [0, 1]


def test_a_process_ends_while_a_page_never_comes() -> None:
    """Workers are told to stop while their database does not answer."""
    script = """
from threading import Event, Thread
from lapse.runner.exporting import _ahead

def pages():
    yield [], []
    began.set()
    Event().wait()

began = Event()
Thread(target=lambda: list(_ahead(pages())), daemon=True).start()
began.wait()
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
