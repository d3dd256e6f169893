"""Several queries in one message: values are written into them, and none can become a part of the SQL."""

from __future__ import annotations

from typing import Any

import pytest

from lapse.engines.postgres import inspect, session


def _sent(monkeypatch: pytest.MonkeyPatch, *asked: inspect.Asked) -> str:
    sent: list[str] = []

    def results(_: Any, sql: str) -> list[Any]:
        sent.append(sql)
        return []

    monkeypatch.setattr(session, "results", results)
    inspect.together(None, *asked)  # type: ignore[arg-type]
    return sent[0]


def test_values_are_literals(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT %(a)s, %(b)s LIKE '%%x'"
    assert _sent(monkeypatch, (sql, {"a": "it's", "b": 7}), ("SELECT 1", {})) == (
        "SELECT 'it''s', '7' LIKE '%x'; SELECT 1"
    )


def test_a_value_that_looks_like_a_place_stays_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _sent(monkeypatch, ("SELECT %(a)s, %(b)s", {"a": "%(b)s %% %", "b": "' OR true --"}))
    assert found == "SELECT '%(b)s %% %', ''' OR true --'"
