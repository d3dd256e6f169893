"""`ttl_keep_last`, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.errors import InvalidValue
from lapse.model.keep_last import MAX_ROWS, KeepLast, parse

names = st.text(min_size=1, max_size=12).filter(lambda name: "\0" not in name)


@given(
    rows=st.integers(1, MAX_ROWS), columns=st.lists(names, min_size=1, max_size=4, unique_by=lambda name: name.lower())
)
def test_what_is_written_is_read_back(rows: int, columns: list[str]) -> None:
    keep = KeepLast(rows=rows, by=tuple(columns[1:]), order=columns[0])
    assert parse(str(keep), "ttl_keep_last") == keep


@pytest.mark.parametrize(
    ("text", "by", "order"),
    [
        ("3 order by at", (), "at"),
        ("3 BY(a,b)ORDER BY at", ("a", "b"), "at"),
        ('3 BY ("Of ""it""", `b``c`) ORDER BY "order"', ('Of "it"', "b`c"), "order"),
        (" 3\n BY ( by )\n ORDER BY order ", ("by",), "order"),
    ],
)
def test_forms(text: str, by: tuple[str, ...], order: str) -> None:
    assert parse(text, "ttl_keep_last") == KeepLast(rows=3, by=by, order=order)


@pytest.mark.parametrize(
    "text",
    [
        *("3", "x ORDER BY a", "-1 ORDER BY a", "3 BY ORDER BY a", "3 BY (a,) ORDER BY b", '3 ORDER BY "a'),
        *("3 ORDER BY a b", "3 ORDER BY a.b", "\u0663 ORDER BY a", "3 BY (a ORDER BY b", "3 ORDER BY (a)"),
        '"3" "BY" (a) ORDER BY b',
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="must have the form"):
        parse(text, "ttl_keep_last")
