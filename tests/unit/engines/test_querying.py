"""The condition of expired rows, written for queries of others without a look at the database."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

import pytest

from lapse.app.policyfile import entry_from_keys
from lapse.engines.base import BoundPolicy
from lapse.engines.querying import expired_now
from lapse.errors import Unsupported
from lapse.model.table import Column, Table, TableKind, TableName
from lapse.runner.policy_manager import bind

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)


def _declared(types: dict[str, str], **keys: str) -> BoundPolicy:
    columns = tuple(Column(name=name, type=kind) for name, kind in types.items())
    policy = entry_from_keys("events", keys, place="test").policy
    assert policy is not None
    return bind(Table(name=TableName("events"), kind=TableKind.TABLE, columns=columns), policy)


def _sql(backend: str, declared: BoundPolicy) -> str:
    return expired_now(backend, declared, NOW, lambda name: f"e.{name}")


def test_mysql_is_not_asked_about_zones_that_it_may_not_know() -> None:
    day = _declared({"day": "date"}, column="day", after="7 days", ttl_time_zone="Europe/Berlin")
    assert "convert_tz" not in _sql("mysql", day)
    assert "e.day" in _sql("mysql", day)


def test_an_expression_may_read_columns_that_hold_no_times() -> None:
    kept = "CASE WHEN keep > 0 THEN NULL ELSE at + INTERVAL '1 day' END"
    sql = _sql("sqlite", _declared({"at": "datetime", "keep": "integer"}, ttl_expiration_expression=kept))
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE e (id INTEGER, at DATETIME, keep INTEGER)")
        rows = [(1, "2026-03-14 12:00:00", 0), (2, "2026-03-14 12:00:01", 0), (3, "2026-01-01", 1), (4, None, 0)]
        connection.executemany("INSERT INTO e VALUES (?, ?, ?)", rows)
        found = connection.execute(f"SELECT id FROM e WHERE coalesce({sql}, 0)").fetchall()
    connection.close()
    assert found == [(1,)]


def test_what_only_the_data_could_tell_is_refused() -> None:
    with pytest.raises(Unsupported, match="must be said"):
        _sql("sqlite", _declared({"at": "integer"}, column="at", after="1 day"))
    assert "e.at" in _sql("sqlite", _declared({"at": "integer"}, column="at", after="1 day", ttl_time_format="unix"))
    with pytest.raises(Unsupported, match="oracle"):
        _sql("oracle", _declared({"at": "date"}, column="at", after="1 day"))
