"""TTL in migrations, on every engine: on the migration's connection, with names as Alembic takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, create_engine, make_url, text

from tests.conformance.harness import Harness

contrib = pytest.importorskip("lapse.contrib.alembic")
DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}


@pytest.fixture
def connection(h: Harness) -> Iterator[Connection]:
    url = make_url(h.url)
    engine = create_engine(url.set(drivername=DRIVERS[url.get_backend_name()]))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_names_are_taken_as_they_are(h: Harness, connection: Connection) -> None:
    h.sql(f"CREATE TABLE {h.q('Odd Events')} (id {h.backend.bigint} PRIMARY KEY, {h.q('At')} {h.backend.instant})")
    operations: Any = Operations(MigrationContext.configure(connection))
    operations.set_ttl("Odd Events", column="At", after="30 days")
    connection.commit()
    (stored,) = h.db.policies()
    assert (stored.table.name, stored.policy.column) == ("Odd Events", "At")
    operations.set_ttl("Odd Events", ttl_expire_after="1 day")
    connection.commit()
    assert h.db.policies()[0].policy.expire_after is not None
    operations.reset_ttl("Odd Events")
    connection.commit()
    assert h.db.policies() == []


def test_the_migration_goes_on_in_its_own_schema(h: Harness, connection: Connection) -> None:
    """Alembic writes its version on the same connection right after."""
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})")
    context = MigrationContext.configure(connection)
    context._ensure_version_table()
    operations: Any = Operations(context)
    operations.set_ttl("events", column="ts", after="1 day")
    connection.execute(context._version.insert().values(version_num="1"))
    connection.commit()
    assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "1"


def test_what_is_rolled_back_was_never_declared(h: Harness, connection: Connection) -> None:
    if not h.features.transactional_ddl:
        pytest.skip("a statement that changes the schema commits")
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
    connection.exec_driver_sql("BEGIN" if h.features.time_types is False else "SELECT 1")
    operations: Any = Operations(MigrationContext.configure(connection))
    operations.set_ttl("events", column="ts", after="9 days", ttl_hide_expired="view")
    connection.rollback()
    assert str(h.db.policy("events").policy.interval) == "1 day"
