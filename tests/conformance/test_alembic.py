"""TTL in migrations, on every engine: on the migration's connection, with names as Alembic takes them."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import alembic.command
import pytest
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, create_engine, make_url, text

from lapse.catalog import catalog, migrations, schema
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
    if h.features.managed_column:
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


ENV = """
from alembic import context
from sqlalchemy import NullPool, create_engine
import lapse.contrib.alembic
import runpy
Base = runpy.run_path({models!r})['Base']

def run(connection=None):
    context.configure(connection=connection, url=None if connection else {url!r}, target_metadata=Base.metadata,
                      render_as_batch=True, include_schemas={schemas!r})
    with context.begin_transaction():
        context.run_migrations()

if context.is_offline_mode():
    run()
else:
    with create_engine({url!r}, poolclass=NullPool).connect() as connection:
        run(connection)
"""
MAKO = '''"""${{message}}"""
from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
revision = ${{repr(up_revision)}}
down_revision = ${{repr(down_revision)}}
def upgrade():
    ${{upgrades}}
def downgrade():
    ${{downgrades}}
'''
MODELS = """
from datetime import timedelta
from sqlalchemy import Column, DateTime, Integer, String
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.orm import declarative_base
from lapse.contrib.sqlalchemy import Ttl
Base = declarative_base()
Instant = DateTime(timezone=True).with_variant(DATETIME(fsp=6), "mysql", "mariadb")
class Event(Base):
    __tablename__ = "events"
    id = Column(Integer, primary_key=True)
    at = Column(Instant)
    name = Column(String(20))
    {event}
class Visit(Base):
    __tablename__ = "visits"
    id = Column(Integer, primary_key=True)
    page = Column(String({length}))
    {visit}
"""


class Project:
    """Alembic as a person runs it, on one database: the models are written anew before each revision."""

    def __init__(self, h: Harness, folder: Path) -> None:
        url = make_url(h.url)
        self._url = url.set(drivername=DRIVERS[url.get_backend_name()]).render_as_string(hide_password=False)
        self._folder, self._number = folder, 0
        (folder / "versions").mkdir()
        (folder / "env.py").write_text(
            ENV.format(url=self._url, schemas=h.features.row_security, models=str(folder / "models.py"))
        )
        (folder / "script.py.mako").write_text(MAKO.format())

    def models(self, *, event: str = "pass", visit: str = "pass", length: int = 20) -> None:
        (self._folder / "models.py").write_text(MODELS.format(event=event, visit=visit, length=length))

    def run(self, command: str, *arguments: str, **options: Any) -> str:
        output = StringIO()
        config = Config(stdout=output, output_buffer=output)
        config.set_main_option("script_location", str(self._folder))
        getattr(alembic.command, command)(config, *arguments, **options)
        return output.getvalue()

    def revise(self) -> str:
        """Write a revision, upgrade to it, and find that nothing is left to do; returns its text."""
        self._number += 1
        self.run("revision", "step", autogenerate=True, rev_id=str(self._number))
        self.run("upgrade", "head")
        self.run("check")
        (found,) = (self._folder / "versions").glob(f"{self._number}_*.py")
        return found.read_text()


def test_autogenerate_sees_ttl_come_change_and_go_and_nothing_of_lapses(h: Harness, tmp_path: Path) -> None:
    if h.backend.worker_url(h.url) != h.url:
        pytest.skip("the role of the worker takes no part in migrations")
    if not h.features.managed_column:
        pytest.skip("there is no managed column")
    project = Project(h, tmp_path)
    project.models(
        event="__lapse__ = Ttl('at', timedelta(days=30), hide=True, time_zone='UTC')",
        visit="__table_args__ = {'info': {'lapse': {'ttl_expire_after': '8 hours'}}}",
    )
    first = project.revise()
    assert "op.set_ttl('events', column='at', after='30 days'" in first
    assert "op.reset_ttl('events')" in first, "a downgrade takes it away"
    assert {stored.table.name for stored in h.owner.policies()} == {"events", "visits"}
    h.sql("INSERT INTO visits (id, page) VALUES (1, 'a')")
    stamp = h.rows("SELECT crdb_internal_expiration FROM visits")
    project.models(
        event="__lapse__ = Ttl('at', '1 month', time_zone='UTC')", visit="__lapse__ = Ttl(after='8 hours')", length=40
    )
    second = project.revise()
    assert "alter_column" in second and "crdb_internal_expiration" not in second and "lapse_" not in second
    assert str(h.owner.policy("events").policy.interval) == "1 month"
    assert h.rows("SELECT crdb_internal_expiration FROM visits") == stamp, "a table that was made anew keeps its times"
    assert h.owner.run("visits").complete
    h.sql("INSERT INTO visits (id, page) VALUES (2, 'b')")
    assert h.rows("SELECT count(crdb_internal_expiration) FROM visits") == [(2,)], "and goes on to stamp rows"
    project.models(event="__lapse__ = Ttl('at', '1 month', time_zone='UTC')", length=40)
    assert "op.reset_ttl('visits')" in project.revise()
    assert [stored.table.name for stored in h.owner.policies()] == ["events"]
    project.run("downgrade", "-1")
    assert str(h.owner.policy("visits").policy.expire_after) == "8 hours"
    assert "ALTER TABLE events SET (ttl_" in project.run("upgrade", "1", sql=True)
    project.run("downgrade", "base")
    assert h.owner.policies() == []


def test_renamed_and_dropped_tables_take_their_policies_along(h: Harness, connection: Connection) -> None:
    h.events(ttl="TTL = ts + INTERVAL 1 DAY WITH (ttl_hide_expired = 'view')")
    operations: Any = Operations(MigrationContext.configure(connection))
    operations.rename_table("events", "happenings")
    connection.commit()
    assert [stored.table.name for stored in h.owner.policies()] == ["happenings"]
    assert h.owner.run("happenings").complete
    operations.drop_table("happenings")
    connection.commit()
    assert h.owner.policies() == []


def test_an_older_catalog_is_upgraded_in_the_migrations_transaction(
    h: Harness, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another connection it would wait for the locks of this one."""
    h.events()
    ran: list[str] = []
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    monkeypatch.setattr(catalog, "VERSION", schema.VERSION)
    monkeypatch.setitem(migrations.STEPS, schema.VERSION - 1, lambda bound: ran.append("step"))
    connection.exec_driver_sql("BEGIN" if h.features.time_types is False else "SELECT 1")
    connection.execute(text("UPDATE events SET ts = NULL"))
    operations: Any = Operations(MigrationContext.configure(connection))
    operations.reset_ttl("events")
    connection.commit()
    assert ran == ["step"]
    assert h.owner.policies() == []
