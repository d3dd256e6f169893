"""The catalog: connections on which its tables can be used, installed on first need and upgraded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from sqlalchemy import Connection

from lapse.catalog import ledger, meta, migrations
from lapse.catalog.schema import VERSION
from lapse.engines.base import Engine
from lapse.errors import CatalogMissing, LapseError, Locked

log = logging.getLogger(__name__)

THERE_SECONDS = 1.0
"""The steps of one statement follow each other sooner, and ask once."""


class Catalog:
    """Opens connections on which the catalog's tables can be used; installs them on first need."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ready = False
        self._there_until = float("-inf")
        """Until then a catalog of this version, which was committed by another process, is taken to be still there."""
        self._was_installed_here = False
        self.on_locked: Callable[[float], None] = lambda seconds: None
        """Told after so many seconds in which a transaction could not begin, as another process has locked it all."""
        self.on_unlocked: Callable[[], None] = lambda: None

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
        with self.engine.connection() as connection, self.writing_on(connection, durable=durable) as bound:
            yield bound

    @contextmanager
    def writing_on(self, connection: Connection, *, durable: bool = True) -> Iterator[Connection]:
        """As `writing`, on a connection of Lapse's own on which no transaction is open."""
        bound = self.bind(connection)
        if not self._ready:
            self._ready = self._upgrade(bound) == VERSION
        asked = monotonic()
        try:
            with self.engine.transaction_on(connection, durable=durable):
                self.on_unlocked()
                self.ensure(bound)
                yield bound
            # What was installed has been committed.
            self._ready = True
        except Locked as error:
            if error.everything:
                self.on_locked(monotonic() - asked)
            raise

    def install(self) -> None:
        """Make sure that the catalog is there, in a transaction of its own."""
        if not self._ready:
            with self.writing():
                pass

    def bind(self, connection: Connection) -> Connection:
        """The same connection, finding the catalog's tables in their schema."""
        return connection.execution_options(schema_translate_map={None: self.engine.catalog_schema})

    def is_installed(self, connection: Connection) -> bool:
        """Can the catalog be read here? An older one is upgraded first."""
        if self._ready or monotonic() < self._there_until:
            return True
        version = self._version(connection)
        if version is not None and version != VERSION:
            migrations.check(version)
            # On a connection of its own: the user may roll this one's transaction back.
            self.install()
        # What a transaction has only just installed may still be rolled back.
        if version == VERSION and not self._was_installed_here:
            self._there_until = monotonic() + THERE_SECONDS
        return version is not None

    def look_again(self) -> None:
        """Before a statement of the user's: the one before may have dropped the catalog."""
        self._there_until = float("-inf")

    def _version(self, connection: Connection) -> int | None:
        """None where there is no catalog, 0 where it is still in the place that earlier versions had for it."""
        self.engine.check_catalog(connection)
        bound, place = self.bind(connection), self.engine.catalog_schema
        version = self.engine.patiently(lambda: migrations.installed_version(bound, place))
        return 0 if version is None and self.engine.has_former_catalog(connection) else version

    def ensure(self, connection: Connection) -> None:
        """Install or upgrade, inside the caller's transaction."""
        if self._ready or monotonic() < self._there_until:
            return
        version = self._version(connection)
        if version == VERSION:
            return
        self._was_installed_here = True
        with self.engine.exclusively(connection):
            if not version:
                self.engine.prepare_catalog(connection)
            # Another process may have been first.
            version = self._version(connection)
            if version is None:
                migrations.install(connection)
                ledger.begin(connection, self.engine.now(connection))
                self._install_client(connection)
                return
            migrations.check(version)
            if version < VERSION:
                self._upgrade_from(connection, version)

    def _upgrade_from(self, connection: Connection, version: int) -> None:
        migrations.upgrade(connection, version)
        if version < migrations.WITH_LEDGER:
            ledger.begin(connection, self.engine.now(connection))
        self._install_client(connection)

    def _install_client(self, connection: Connection) -> None:
        if self.engine.install_client(connection):
            meta.set_client_version(connection, self.engine.client_version)

    def upgrade(self, connection: Connection) -> None:
        """Upgrade a catalog that is there, inside the caller's transaction, whose locks another one would wait for."""
        version = self._version(connection)
        if version is not None and version != VERSION:
            self.ensure(connection)

    def _upgrade(self, connection: Connection) -> int | None:
        """Upgrade an older catalog, in a transaction of its own; returns the version that is there then.

        Nothing of the catalog is read in that transaction before its lock is held: of those that come at the same time
        each would wait for what another has read.
        """
        version = self._version(connection)
        if version == VERSION:
            self._upgrade_client(connection)
        if version is None or version >= VERSION:
            return version
        with self.engine.atomic(connection), self.engine.exclusively(connection):
            if not self._version(connection):
                self.engine.prepare_catalog(connection)
            version = self._version(connection)
            if version is not None and version < VERSION:
                self._upgrade_from(connection, version)
        return VERSION

    def _upgrade_client(self, connection: Connection) -> None:
        """Where this role may: the catalog is of use without it, and `lapse doctor` says what is missing."""
        if self.has_client(connection):
            return
        try:
            with self.engine.atomic(connection), self.engine.exclusively(connection):
                if not self.has_client(connection):
                    self._install_client(connection)
        except LapseError as error:
            log.debug("what people call from the database's own client was not made: %s", error.message)

    def has_client(self, connection: Connection) -> bool:
        """Is what people call from the database's own client there, as this version of Lapse makes it?"""
        wanted = self.engine.client_version
        return not wanted or meta.client_version(connection) >= wanted

    def repair_client(self) -> bool:
        """Make what is missing of it again; False where this role may not."""
        with self.writing() as connection, self.engine.exclusively(connection):
            return self.engine.install_client(connection)

    def check_again(self) -> None:
        """Raises CatalogTooNew where a newer Lapse has upgraded the catalog since it was opened."""
        with self.engine.connection() as connection:
            version = self._version(connection)
        if version is not None:
            migrations.check(version)

    def require(self, connection: Connection) -> None:
        """Raises CatalogMissing where nothing was ever declared."""
        if self._ready:
            return
        is_free = not self.engine.in_transaction(connection)
        version = self._upgrade(self.bind(connection)) if is_free else self._version(connection)
        if version is None:
            raise CatalogMissing(
                "no TTL policy was ever declared in this database",
                hint="declare one: lapse sql URL -c \"ALTER TABLE t SET (ttl_expire_after = '30 days')\"",
            )
        migrations.check(version)
        # What a transaction has only just installed may still be rolled back.
        self._ready = version == VERSION and is_free
