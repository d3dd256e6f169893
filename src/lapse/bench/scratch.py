"""A measurement on the user's own server: scratch tables with a name of their own, and nothing left behind."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import text

from lapse.app import Lapse
from lapse.bench.contenders import STANDARD, Contender, lapse
from lapse.bench.measure import Measurement, Progress, compare
from lapse.bench.shape import Shape
from lapse.bench.tables import table_for
from lapse.catalog import schema
from lapse.errors import DatabaseError

PREFIX = "lapse_bench_"
DRIVERS = ("psycopg", "pymysql", "sqlite3")


def measure_here(
    database: Lapse, shapes: Sequence[Shape], *, rounds: int, progress: Progress = lambda line: None
) -> list[Measurement]:
    """The contenders that need nothing but SQL, and Lapse as it is set here."""
    table = table_for(database.engine.database.url, PREFIX + secrets.token_hex(4))
    contenders: list[Contender] = [*STANDARD, lapse()]
    with _as_it_was(database), _driver_errors():
        return compare(table, dict.fromkeys(shapes, contenders), rounds=rounds, progress=progress)


@contextmanager
def _driver_errors() -> Iterator[None]:
    """Contenders speak to the drivers themselves."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in DRIVERS:
            raise
        raise DatabaseError(str(error).strip()) from error


@contextmanager
def _as_it_was(database: Lapse) -> Iterator[None]:
    """Where Lapse had no catalog before, it has none afterwards."""
    with database.engine.connection() as connection:
        installed = database.catalog.is_installed(database.catalog.bind(connection))
    try:
        yield
    finally:
        if not installed:
            _remove_catalog(database)


def _remove_catalog(database: Lapse) -> None:
    engine = database.engine
    with engine.transaction() as connection:
        bound = database.catalog.bind(connection)
        prefix = f'"{engine.catalog_schema}".' if engine.catalog_schema else ""
        engine.remove_client(connection)
        for view in schema.VIEWS:
            bound.execute(text(f"DROP VIEW IF EXISTS {prefix}{view}"))
        schema.metadata.drop_all(bound)
        if engine.catalog_schema:
            bound.execute(text(f"DROP SCHEMA IF EXISTS {prefix.rstrip('.')}"))
