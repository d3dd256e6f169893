"""A DELETE cannot be built without its expiry condition and its bound."""

from __future__ import annotations

import pytest

from lapse.engines.action import Delete, Rows
from lapse.errors import LapseError


def test_a_guarded_delete() -> None:
    rows = Rows(table="t", condition="ts <= 1", bound="id IN (1)", extra="x")
    assert Delete().statements(rows) == ("DELETE FROM t WHERE id IN (1) AND ts <= 1 AND x",)


@pytest.mark.parametrize("missing", ["table", "condition", "bound"])
def test_what_is_missing_is_refused(missing: str) -> None:
    parts = {"table": "t", "condition": "c", "bound": "b"} | {missing: "  "}
    with pytest.raises(LapseError, match=missing):
        Rows(**parts)
