"""The catalog's tables as each database gets them, and the instants in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Dialect, create_mock_engine
from sqlalchemy.dialects import mysql, postgresql, sqlite

from lapse.catalog import schema
from lapse.catalog.schema import Instant

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BARE_NOON = NOON.replace(tzinfo=None)
MYSQL: Dialect = mysql.dialect()
POSTGRES: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
SQLITE: Dialect = sqlite.dialect()


def created_tables(url: str) -> dict[str, str]:
    """Name → the statement that creates it."""
    statements: list[str] = []

    def take(statement: Any, *_: Any, **__: Any) -> None:
        statements.append(str(statement.compile(dialect=database.dialect)).strip())

    database = create_mock_engine(url, take)
    schema.metadata.create_all(database, checkfirst=False)
    tables = [statement for statement in statements if statement.startswith("CREATE TABLE")]
    return {statement.split()[2]: statement for statement in tables}


def test_every_table_on_mysql_is_transactional_tells_case_apart_and_says_whose_it_is() -> None:
    found = created_tables("mysql+pymysql://")
    assert set(found) == set(schema.metadata.tables)
    for statement in found.values():
        for option in ("ENGINE=InnoDB", "CHARSET=utf8mb4", "COLLATE utf8mb4_bin", "COMMENT='made by Lapse'"):
            assert option in statement.rpartition(")")[2], statement


@pytest.mark.parametrize("url", ["sqlite://", "postgresql+psycopg://"])
def test_other_databases_get_no_such_options(url: str) -> None:
    found = created_tables(url)
    assert set(found) == set(schema.metadata.tables)
    assert not [statement for statement in found.values() if "InnoDB" in statement or "utf8mb4" in statement]


def test_mysql_keeps_the_microseconds() -> None:
    assert str(Instant().compile(dialect=MYSQL)) == "DATETIME(6)"
    assert str(Instant().compile(dialect=POSTGRES)) == "TIMESTAMP WITH TIME ZONE"


def test_an_instant_is_stored_as_utc_whatever_its_zone() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=-7)))
    assert Instant().process_bind_param(elsewhere, SQLITE) == BARE_NOON
    assert Instant().process_bind_param(elsewhere, MYSQL) == BARE_NOON
    sent = Instant().process_bind_param(elsewhere, POSTGRES)
    assert (sent, sent and sent.tzinfo) == (NOON, UTC)
    assert Instant().process_bind_param(None, SQLITE) is None


def test_an_instant_is_read_as_utc_whatever_the_driver_says() -> None:
    for read in (BARE_NOON, NOON.astimezone(timezone(timedelta(hours=9)))):
        found = Instant().process_result_value(read, SQLITE)
        assert (found, found and found.utcoffset()) == (NOON, timedelta(0))
    assert Instant().process_result_value(None, SQLITE) is None
