"""Lapse's own tables inside the user's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from lapse.catalog import migrations
from lapse.catalog.schema import VERSION
from lapse.engines.base import Engine
from lapse.errors import CatalogMissing


class Catalog:
    """Opens connections on which the catalog's tables can be used; installs them on first need."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ready = False

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for reading; raises CatalogMissing where nothing was ever declared."""
        with self.engine.connection() as connection:
            bound = self.bind(connection)
            self.require(bound)
            yield bound

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Connection]:
        """One transaction, with the catalog installed. What a crash may undo, to be done again, is not `durable`."""
        with self.engine.transaction(durable=durable) as connection:
            bound = self.bind(connection)
            self.ensure(bound)
            yield bound

    def install(self) -> None:
        """Make sure that the catalog is there, in a transaction of its own."""
        if not self._ready:
            with self.writing():
                pass

    def bind(self, connection: Connection) -> Connection:
        """The same connection, finding the catalog's tables in their schema."""
        return connection.execution_options(schema_translate_map={None: self.engine.catalog_schema})

    def is_installed(self, connection: Connection) -> bool:
        return self._ready or self._version(connection) is not None

    def _version(self, connection: Connection) -> int | None:
        return migrations.installed_version(self.bind(connection), self.engine.catalog_schema)

    def ensure(self, connection: Connection) -> None:
        """Install or upgrade, inside the caller's transaction."""
        if self._ready:
            return
        version = self._version(connection)
        if version == VERSION:
            return
        with self.engine.exclusively(connection):
            if version is None:
                self.engine.prepare_catalog(connection)
            # Somebody else may have been first.
            version = self._version(connection)
            if version is None:
                migrations.install(connection)
                return
            migrations.check(version)
            if version < VERSION:
                migrations.upgrade(connection, version)

    def require(self, connection: Connection) -> None:
        """Raises CatalogMissing where nothing was ever declared."""
        if self._ready:
            return
        version = self._version(connection)
        if version is None:
            raise CatalogMissing(
                "no TTL policy was ever declared in this database",
                hint="declare one: lapse sql URL -c \"ALTER TABLE t SET (ttl_expire_after = '30 days')\"",
            )
        migrations.check(version)
        if version < VERSION and not self.engine.in_transaction(connection):
            with self.engine.atomic(connection):
                self.ensure(self.bind(connection))
            version = VERSION
        # What a transaction has only just installed may still be rolled back.
        self._ready = version == VERSION and not self.engine.in_transaction(connection)


__all__ = ["Catalog"]
