"""TTL in migrations: on the migration's connection, and gone with its transaction when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text

import lapse
from lapse.ddl import parse_one
from lapse.errors import UsageError
from lapse.model.statement import AlterTable
from lapse.model.table import TableName

alembic = pytest.importorskip("alembic")
contrib = pytest.importorskip("lapse.contrib.alembic")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    engine = create_engine(url)
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT)"))
        connection.commit()
        yield connection
    engine.dispose()


def _operations(connection: Connection) -> Any:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    return Operations(MigrationContext.configure(connection))


def test_set_and_reset(connection: Connection, url: str) -> None:
    _operations(connection).set_ttl("events", column="at", after="30 days", ttl_job_cron="@daily")
    connection.commit()
    with lapse.open(url) as db:
        (stored,) = db.policies()
        assert (stored.policy.column, stored.policy.job_cron) == ("at", "@daily")
    _operations(connection).set_ttl("events", column="at", after="10 days")
    connection.commit()
    with lapse.open(url) as db:
        assert db.policy("events").policy.job_cron is None
    _operations(connection).reset_ttl("events")
    connection.commit()
    with lapse.open(url) as db:
        assert db.policies() == []


def test_it_is_part_of_the_migrations_transaction(connection: Connection, url: str) -> None:
    connection.exec_driver_sql("BEGIN")
    connection.execute(text("INSERT INTO events (at) VALUES ('2020-01-01')"))
    _operations(connection).set_ttl("events", ttl_expire_after="1 day")
    connection.rollback()
    with lapse.open(url) as db:
        assert db.execute("SELECT count(*) FROM events").rows == ((0,),)
        assert db.draft().count("[tables.events]") == 1
        assert db.candidates()[0].table.name == "events"


def test_mistakes_are_refused(connection: Connection) -> None:
    with pytest.raises(UsageError):
        _operations(connection).set_ttl("events", exclude="no")
    assert contrib.SetTtl("events", {}).reverse().table == "events"


def test_offline_mode_writes_what_lapse_sql_understands(url: str) -> None:
    from io import StringIO

    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    written = StringIO()
    options = {"as_sql": True, "output_buffer": written}
    operations: Any = Operations(MigrationContext.configure(dialect_name="postgresql", opts=options))
    operations.set_ttl("Events", schema="app", column="at", after="30 days", ttl_job_cron="@daily")
    operations.reset_ttl("events")
    with pytest.raises(UsageError):
        operations.set_ttl("events", nonsense=1)
    first, second = (part.strip() for part in written.getvalue().split(";")[:2])
    assert first.splitlines()[0] == "-- for lapse sql -f"
    statement = parse_one(first, "postgres")
    assert isinstance(statement, AlterTable)
    assert statement.table == TableName("Events", "app")
    assert statement.change.set["job_cron"] == "@daily"
    assert second.endswith("ALTER TABLE events RESET (ttl)")


def test_the_connection_keeps_its_options(connection: Connection) -> None:
    before = dict(connection.get_execution_options())
    _operations(connection).set_ttl("events", column="at", after="30 days")
    after = {name: value for name, value in connection.get_execution_options().items() if value is not None}
    assert after == before
