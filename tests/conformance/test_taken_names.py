"""Names that users have given to tables of their own before Lapse came, and after."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect

from lapse.catalog import schema
from lapse.errors import CatalogError, LapseError, Refused
from tests.conformance.harness import Harness


def test_a_table_whose_name_begins_with_lapse_is_an_ordinary_one(h: Harness) -> None:
    columns = f"id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}"
    h.sql(f"CREATE TABLE lapse_days ({columns}) TTL = ts + INTERVAL 1 DAY")
    h.insert((1, h.at(days=-2)), (2, h.at()), table="lapse_days")
    h.run("lapse_days")
    assert h.ids("lapse_days") == [2]
    with h.client() as connection:
        assert [name.name for name in h.owner.engine.tables(connection)] == ["lapse_days"]


@pytest.mark.parametrize("name", ["lapse_policy", "lapse_meta", "lapse_jobs"])
def test_a_users_table_under_a_name_of_the_catalog_is_refused_with_nothing_left_behind(h: Harness, name: str) -> None:
    _skip_where_the_catalog_has_its_own_schema(h)
    h.sql(f"CREATE TABLE {name} (id {h.backend.bigint} PRIMARY KEY, mine {h.backend.key_text})")
    h.sql(f"INSERT INTO {name} VALUES (1, 'mine')")
    _check_refused(h, name)
    assert h.rows(f"SELECT * FROM {name}") == [(1, "mine")]
    h.sql(f"ALTER TABLE {name} RENAME TO mine")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    assert h.rows("SELECT * FROM mine") == [(1, "mine")]


@pytest.mark.parametrize("name", ["lapse_policy", "lapse_jobs"])
def test_a_users_view_under_a_name_of_the_catalog_is_refused_with_nothing_left_behind(h: Harness, name: str) -> None:
    _skip_where_the_catalog_has_its_own_schema(h)
    h.sql(f"CREATE VIEW {name} AS SELECT 1 AS mine")
    _check_refused(h, name)
    assert h.rows(f"SELECT * FROM {name}") == [(1,)]


def _check_refused(h: Harness, name: str) -> None:
    h.sql(f"CREATE TABLE events (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})")
    before = _names(h)
    with pytest.raises(CatalogError, match=f"{name} in this database, which is not Lapse's"):
        h.sql("ALTER TABLE events SET (ttl_expire_after = '1 hour')")
    assert _names(h) == before
    with pytest.raises(LapseError):
        h.sql("SELECT crdb_internal_expiration FROM events")


def _names(h: Harness) -> list[str]:
    with h.owner.engine.connection() as connection:
        return sorted([*inspect(connection).get_table_names(), *inspect(connection).get_view_names()])


@pytest.mark.parametrize(
    "left",
    [
        ["DROP TABLE lapse_rate"],
        ["DROP VIEW lapse_table_status", "DROP VIEW lapse_reloptions"],
        [f"DROP VIEW {name}" for name in schema.VIEWS] + ["DROP TABLE lapse_rate"],
        # The views are left, and have nothing to read.
        ["DROP TABLE lapse_task", "DROP TABLE lapse_job"],
    ],
    ids=["a table", "views", "views and a table", "tables that views read"],
)
def test_what_an_interrupted_installation_has_left_is_completed(h: Harness, left: list[str]) -> None:
    _skip_where_the_catalog_has_its_own_schema(h)
    h.events()
    with h.owner.engine.connection() as connection:
        for statement in ["DELETE FROM lapse_meta WHERE name = 'catalog_version'", *left]:
            connection.exec_driver_sql(statement)
        connection.commit()
    with h.open() as db:
        db.execute(f"CREATE TABLE more (id INTEGER PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
        assert len(db.policies()) == 2
        h.insert((1, h.at(days=-2)), (2, h.at()))
        db.run("events")
    assert h.ids() == [2]
    assert [row[0] for row in h.rows("SELECT status FROM lapse_jobs")] == ["finished"]


def test_a_users_view_stays_where_an_installation_was_interrupted(h: Harness) -> None:
    _skip_where_the_catalog_has_its_own_schema(h)
    h.events()
    with h.owner.engine.connection() as connection:
        for statement in (
            "DELETE FROM lapse_meta WHERE name = 'catalog_version'",
            "DROP VIEW lapse_jobs",
            "CREATE VIEW lapse_jobs AS SELECT 1 AS mine",
        ):
            connection.exec_driver_sql(statement)
        connection.commit()
    with h.open() as db, pytest.raises(CatalogError, match="lapse_jobs"):
        db.execute(f"CREATE TABLE more (id INTEGER PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
    assert h.rows("SELECT * FROM lapse_jobs") == [(1,)]


def _skip_where_the_catalog_has_its_own_schema(h: Harness) -> None:
    if h.owner.engine.catalog_schema is not None:
        pytest.skip("the catalog has a schema of its own")


def test_the_catalogs_own_tables_take_no_policy(h: Harness) -> None:
    _skip_where_the_catalog_has_its_own_schema(h)
    h.events()
    with pytest.raises(Refused):
        h.sql("ALTER TABLE lapse_job TTL = created_at + INTERVAL 1 DAY")
