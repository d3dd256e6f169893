"""Was a row deleted, when and by which policy? Answered from hashes, for those who may read their secret."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from lapse.app.ledger import LedgerReader
from lapse.catalog import Catalog, ledger, ledger_keys
from lapse.errors import NotFound, NotPermitted, TableNotFound
from lapse.model.ledger import LedgerEntry
from lapse.model.ledger_keys import AskedKey
from lapse.model.table import TableName


@dataclass(frozen=True, kw_only=True, slots=True)
class DeletedRow:
    """A row with the key that was asked for was deleted at `at`, an ISO 8601 instant, by `job`. `entry` is what the
    ledger says about that job, with the policy's version and the cutoff; None while it runs."""

    at: str
    job: int
    entry: LedgerEntry | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyHistory:
    """`found` has each row with this key that was deleted, the oldest first. All in all `rows` keys of the table are on
    record, of rows that were deleted from `since` to `until`."""

    table: TableName
    key: tuple[str, ...]
    found: tuple[DeletedRow, ...]
    rows: int
    since: str
    until: str


class KeyReader:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._reader = LedgerReader(catalog)

    def history(self, table: str, key: Sequence[str]) -> KeyHistory:
        """Raises NotFound where no key of the table is on record, NotPermitted where this role may not ask."""
        self._reader.seal()
        name = self._reader.table(table)
        with self._catalog.reading() as connection:
            extent = ledger_keys.extent(connection, name)
            if extent.since is None or extent.until is None:
                raise NotFound(
                    f"no keys of deleted rows of table {name} are on record",
                    hint=f"ALTER TABLE {name} SET (ttl_ledger_keys = 'on') records them from then on",
                )
            asked = self._asked(connection, name, key)
            secrets, hidden = ledger_keys.secrets_used(connection, name)
            if hidden:
                raise NotPermitted(
                    f"keys of table {name} were hashed with a secret that this role may not read, or that is gone",
                    hint="ask as the owner of the table",
                )
            found = [each for one in asked for each in ledger_keys.deletions(connection, name, secrets, one)]
            rows = [
                DeletedRow(at=each.at, job=each.job, entry=ledger.run_of(connection, name, each.job))
                for each in found
                for _ in range(each.times)
            ]
        return KeyHistory(
            table=name, key=tuple(key), found=tuple(rows), rows=extent.rows, since=extent.since, until=extent.until
        )

    def _asked(self, connection: Connection, name: TableName, key: Sequence[str]) -> Sequence[AskedKey]:
        with suppress(TableNotFound):
            return [self._engine.asked_key(connection, self._engine.describe(connection, name), key)]
        return self._engine.guessed_keys(key)
