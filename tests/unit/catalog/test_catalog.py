"""The catalog as a whole: installed on first need, read only where it is there, refused where it is too new."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect, update

from lapse.catalog import Catalog, schema, settings
from lapse.catalog.schema import VERSION
from lapse.engines import Engine
from lapse.errors import CatalogError, CatalogMissing, CatalogTooNew, Locked
from tests.unit.runner.build import NOW


def tables(engine: Engine) -> set[str]:
    with engine.connection() as connection:
        return set(inspect(connection).get_table_names())


def stamped(catalog: Catalog, version: str) -> None:
    """As if another version of Lapse had written it."""
    with catalog.writing() as connection:
        connection.execute(update(schema.meta).where(schema.meta.c.name == "catalog_version").values(value=version))


def test_reading_installs_nothing(catalog: Catalog, engine: Engine) -> None:
    with pytest.raises(CatalogMissing, match="no TTL policy was ever declared"), catalog.reading():
        pass
    assert tables(engine) == set()


def test_writing_installs_everything(catalog: Catalog, engine: Engine) -> None:
    with catalog.writing() as connection:
        settings.save_setting(connection, "lapse_mode", "fast", NOW)
    assert tables(engine) >= set(schema.metadata.tables)
    with Catalog(engine).reading() as connection:
        assert settings.load_settings(connection).mode == "fast"


def test_an_error_takes_back_what_was_installed(catalog: Catalog, engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), catalog.writing():
        raise ZeroDivisionError
    assert tables(engine) == set()
    # And it is not taken for installed.
    with pytest.raises(CatalogMissing), catalog.reading():
        pass
    catalog.install()
    assert tables(engine) >= set(schema.metadata.tables)


def test_what_a_transaction_of_the_user_s_has_installed_may_still_be_rolled_back(
    catalog: Catalog, engine: Engine
) -> None:
    with engine.connection() as connection:
        with pytest.raises(ZeroDivisionError), engine.atomic(connection):
            bound = catalog.bind(connection)
            catalog.ensure(bound)
            catalog.require(bound)
            raise ZeroDivisionError
        with pytest.raises(CatalogMissing):
            catalog.require(catalog.bind(connection))


def test_whether_it_is_installed_can_be_asked(catalog: Catalog, engine: Engine) -> None:
    with engine.connection() as connection:
        assert not catalog.is_installed(connection)
    catalog.install()
    with engine.connection() as connection:
        assert catalog.is_installed(connection) and Catalog(engine).is_installed(connection)


def test_a_catalog_of_a_newer_lapse_is_refused_and_left_alone(catalog: Catalog, engine: Engine) -> None:
    stamped(catalog, str(VERSION + 1))
    fresh = Catalog(engine)
    for enter in (fresh.reading, fresh.writing):
        with pytest.raises(CatalogTooNew, match=f"version {VERSION + 1}"), enter():
            pass
    with pytest.raises(CatalogTooNew):
        # A worker that was running when it was upgraded.
        catalog.check_again()


def test_a_version_that_is_no_number_is_refused(catalog: Catalog, engine: Engine) -> None:
    stamped(catalog, "seven")
    with pytest.raises(CatalogError, match="'seven', which is no number"), Catalog(engine).reading():
        pass


@pytest.mark.parametrize("statement", ["CREATE TABLE lapse_job (id INTEGER)", "CREATE TABLE lapse_jobs (id INTEGER)"])
def test_a_table_of_the_user_s_under_its_name_is_left_alone(catalog: Catalog, engine: Engine, statement: str) -> None:
    with engine.connection() as connection:
        connection.exec_driver_sql(statement)
    name = statement.split()[2]
    with pytest.raises(CatalogError, match=f"something named {name} in this database, which is not Lapse's"):
        catalog.install()
    assert tables(engine) == {name}


def test_what_an_interrupted_installation_has_left_is_completed(catalog: Catalog, engine: Engine) -> None:
    with engine.connection() as connection:
        schema.job.create(connection)
    catalog.install()
    assert tables(engine) >= set(schema.metadata.tables)


def test_a_lock_on_everything_is_told_and_one_on_a_table_is_not(catalog: Catalog) -> None:
    told: list[float] = []
    opened: list[str] = []
    catalog.install()
    catalog.on_locked = told.append
    catalog.on_unlocked = lambda: opened.append("open")
    with pytest.raises(Locked), catalog.writing():
        raise Locked("one row")
    assert (told, opened) == ([], ["open"])
    with pytest.raises(Locked), catalog.writing():
        raise Locked("the file", everything=True)
    assert len(told) == 1


def test_views_read_what_is_stored(catalog: Catalog) -> None:
    with catalog.writing() as connection:
        for view in schema.VIEWS:
            assert connection.exec_driver_sql(f"SELECT * FROM {view}").all() == []
