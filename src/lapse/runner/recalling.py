"""Files for a restore: which of them are meant, and how their rows come back into the outbox, one file at a time.

While a restore is at work it has the lease of the outbox, so that no worker exports what was just brought back. What it
leaves there, by choice or because it was killed, goes into a new file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TypeVar
from uuid import uuid4

from sqlalchemy import Connection

from lapse.archive import Archive
from lapse.catalog import Catalog, archive_files, exports
from lapse.catalog.archive_files import FileState, StoredFile
from lapse.catalog.exports import LEASE_SECONDS
from lapse.engines.base import Engine
from lapse.errors import Retryable
from lapse.runner.destination import open_claimed
from lapse.runner.exporting import Exporter, Outbox
from lapse.runner.exports import leased

WAIT_SECONDS = 0.5
"""How often it is asked again whether an export has ended."""

R = TypeVar("R")


class _Undone(Exception):
    pass


@contextmanager
def undone(engine: Engine) -> Iterator[Connection]:
    """A transaction that changes nothing, and that nothing sees."""
    with suppress(_Undone), engine.transaction() as connection:
        yield connection
        raise _Undone


@dataclass(frozen=True, kw_only=True, slots=True)
class Recalled:
    """The files that are meant, all of them published, and `alive`, to be called between batches."""

    files: tuple[StoredFile, ...]
    alive: Callable[[], None]


class Recall:
    def __init__(self, catalog: Catalog, place: Outbox, chosen: Callable[[StoredFile], bool]) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._place = place
        self._chosen = chosen
        self._archives: dict[str, Archive] = {}

    @contextmanager
    def held(self) -> Iterator[Recalled]:
        """Wait for an export that is at work, then keep others away. Raises Retryable where it does not end."""
        owner, until = f"restore-{uuid4().hex[:12]}", monotonic() + 2 * LEASE_SECONDS
        while True:
            with leased(self._catalog, self._place.outbox, owner) as alive:
                if alive is not None:
                    try:
                        self._exporter(self._place.destination, alive).settle()
                        yield Recalled(files=self.files(), alive=alive)
                    finally:
                        with self._catalog.writing(durable=False) as connection:
                            exports.give_back(connection, self._place.outbox, owner)
                    return
            if monotonic() > until:
                raise Retryable(f"rows are being exported to {self._place.destination}", hint="try again later")
            sleep(WAIT_SECONDS)

    def files(self) -> tuple[StoredFile, ...]:
        with self._catalog.reading() as connection:
            found = archive_files.list_files(connection, self._place.outbox)
        return tuple(file for file in found if file.state is FileState.PUBLISHED and self._chosen(file))

    def look(self, file: StoredFile, measure: Callable[[Connection], R]) -> R:
        """With the rows of a file in the outbox, which nothing sees and which is undone. Raises ArchiveDamaged where
        the file is not the one that was recorded."""
        with (
            self._archive(file.destination).read(file.path, expected=file.digest) as read,
            undone(self._engine) as connection,
        ):
            for batch in read.cells():
                self._engine.cells.insert(connection, self._place.staging, read.file.header.columns, batch)
            return measure(connection)

    def bring_back(self, file: StoredFile, alive: Callable[[], None]) -> None:
        self._exporter(file.destination, alive).bring_back(file)

    def put_away(self, alive: Callable[[], None]) -> None:
        """What was left in the outbox goes into files."""
        self._exporter(self._place.destination, alive).run_once()

    def _exporter(self, destination: str, alive: Callable[[], None]) -> Exporter:
        place = Outbox(
            table=self._place.table,
            staging=self._place.staging,
            destination=destination,
            policy_version=self._place.policy_version,
        )
        return Exporter(self._catalog, self._archive(destination), place, alive=alive)

    def _archive(self, destination: str) -> Archive:
        if destination not in self._archives:
            with self._catalog.reading() as connection:
                self._archives[destination] = open_claimed(connection, destination)
        return self._archives[destination]
