"""Restored and cloned databases: their policies are disarmed until somebody says that they may delete here, too."""

from __future__ import annotations

from lapse.catalog import Catalog, meta, policies
from lapse.runner.declarer import Declarer
from lapse.runner.retry import retried

DISARMED = "disarmed: this database is a copy of the one in which the policy was declared; `lapse resume` arms it"


class IdentityGuard:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._declarer = Declarer(catalog)
        self._known_as: str | None = None

    @retried
    def run_once(self) -> bool:
        """True when the policies were disarmed just now."""
        engine = self._catalog.engine
        with self._catalog.reading() as connection:
            identity = engine.identity(connection)
            if identity is None or identity == self._known_as:
                return False
            before = meta.read_fact(connection, meta.DATABASE_IDENTITY)
        disarmed = before != identity and self._take_over(before, identity)
        self._known_as = identity
        return disarmed

    def _take_over(self, before: str | None, identity: str) -> bool:
        """Whoever is first to write the new identity disarms; the others wait for its commit."""
        with self._catalog.writing() as connection:
            if not meta.replace_fact(connection, meta.DATABASE_IDENTITY, before, identity) or before is None:
                return False
            for stored in policies.list_policies(connection):
                self._declarer.disarm(connection, stored, DISARMED)
        return True
