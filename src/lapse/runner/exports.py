"""Exports beside jobs: rows that wait in outboxes go into files, in a thread of its own, while there are any.

No job waits for a file. A table whose rows wait in too great a number waits itself; where the destination cannot be
written to, it is blocked. Neither is a matter of any other table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from threading import Event, Lock, Thread
from time import monotonic

from sqlalchemy import Connection

from lapse.catalog import Catalog, archive_files, exports, jobs, policies, settings
from lapse.catalog.exports import LEASE_SECONDS, NOTED_SECONDS, ExportState
from lapse.catalog.policies import StoredPolicy
from lapse.errors import Blocked, DatabaseUnavailable, Interrupted, LapseError, NotPermitted, Retryable
from lapse.model.archive import archive_table, file_url, label
from lapse.model.blocked import BlockCode
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner.destination import open_claimed
from lapse.runner.exporting import Exported, Exporter, Outbox

ENOUGH_ROWS = 50_000
"""While a job is at work, so many rows are worth a file; what it leaves is exported when it has ended."""
ROUND_SECONDS = 1.0
"""How often outboxes are looked at while jobs fill them; sooner where jobs have moved enough rows for a file."""
LIST_SECONDS = 30.0
"""How often a worker looks for rows that another process has left, and for files that were kept long enough."""
RETRY_SECONDS = 10.0
"""How long a destination is left alone that could not be written to."""

MOST_AT_ONCE = 8
"""Tables whose rows one process exports at the same time."""
CLOSE_SECONDS = 15.0
FINISHING_ROUNDS = 20
"""A run looks this often whether others have left rows for it to export."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What became of the rows of one table: what was written since a run began, and why more was not. `waiting` rows
    are left to another process, which exports them, or did until it died."""

    table: TableName
    destination: str
    files: int = 0
    rows: int = 0
    bytes: int = 0
    problem: str | None = None
    hint: str | None = None
    waiting: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """An outbox in the last round. `waiting` is how many rows there are, at most."""

    waiting: int
    problem: str | None
    hint: str | None


def refuse_unwritable(connection: Connection, stored: StoredPolicy) -> None:
    """No more rows are deleted for a destination that could not be written to. Raises Blocked. `connection` is the
    catalog's."""
    text = stored.policy.archive
    if text is None or file_url(text) is None:
        return
    state = exports.read(connection, label(archive_table(text, stored.table)))
    if state.problem is not None:
        raise Blocked(BlockCode.ARCHIVE, state.problem, hint=state.hint)


@contextmanager
def leased(catalog: Catalog, outbox: str, owner: str, stop: Event | None = None) -> Iterator[Callable[[], None] | None]:
    """Be the one exporter of an outbox; None where another is. What is given out renews that, now and then."""
    if not _take(catalog, outbox, owner):
        yield None
        return
    renewed = monotonic()

    def alive() -> None:
        nonlocal renewed
        if stop is not None and stop.is_set():
            raise Interrupted("the export was told to stop")
        if monotonic() - renewed > LEASE_SECONDS / 4:
            if not _take(catalog, outbox, owner):
                raise Retryable(f"another session exports the rows of {outbox}")
            renewed = monotonic()

    yield alive


def _take(catalog: Catalog, outbox: str, owner: str) -> bool:
    with catalog.writing(durable=False) as connection:
        return exports.take(connection, outbox, owner, catalog.engine.stopwatch(connection))


def _started(name: str, work: Callable[[], None]) -> Thread:
    context = copy_context()
    thread = Thread(target=lambda: context.run(work), name=name, daemon=True)
    thread.start()
    return thread


class Exports:
    """One thread looks how many rows wait; each table that has enough of them gets a thread for its files."""

    def __init__(self, catalog: Catalog, owner: str) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._owner = owner
        self._stop = Event()
        self._due = Event()
        self._moved = 0
        self._starting, self._looking = Lock(), Lock()
        self._thread: Thread | None = None
        self._at_work: dict[int, Thread] = {}
        self._listed_at = float("-inf")
        self._retry_at: dict[int, float] = {}
        self._noted_at: dict[int, float] = {}
        self._seen: dict[int, _Seen] = {}
        self._done: dict[int, Export] = {}
        self._bound = 0
        self._only: StoredPolicy | None = None

    # Beside jobs

    def look(self) -> None:
        """Called often; looks now and then whether there is something to export or to remove."""
        if monotonic() - self._listed_at > LIST_SECONDS:
            self._listed_at = monotonic()
            with self._catalog.reading() as connection:
                found = policies.policies_with_files(connection)
            if found:
                self.wake()

    def wake(self) -> None:
        """Begin, unless it is at work."""
        with self._starting:
            if not self._stop.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._thread = _started("lapse-exports", self._loop)

    def count(self, stored: StoredPolicy, rows: int) -> None:
        """Rows that a batch has moved to an outbox."""
        if stored.policy.archive is None or file_url(stored.policy.archive) is None:
            return
        with self._starting:
            self._moved += rows
            if self._moved >= ENOUGH_ROWS:
                self._moved = 0
                self._due.set()

    def stop(self) -> None:
        """After the page at hand; a file that is not complete is given up."""
        self._stop.set()
        self._due.set()

    def close(self) -> None:
        """A destination that does not answer is not waited for: what it was sent is given up by the next exporter."""
        self.stop()
        until = monotonic() + CLOSE_SECONDS
        for thread in (self._thread, *self._at_work.values()):
            if thread is not None:
                thread.join(max(0.0, until - monotonic()))

    def stop_reason(self, stored: StoredPolicy) -> str | None:
        """Why no more rows of a table may be deleted now. Raises Blocked where waiting does not help."""
        if stored.policy.archive is None or (url := file_url(stored.policy.archive)) is None:
            return None
        self.wake()
        seen = self._seen.get(stored.id)
        if seen is None or seen.waiting <= self._bound:
            return None
        reason = f"{seen.waiting:,} rows wait for their export to {url}, and lapse_archive_backlog is {self._bound:,}"
        if seen.problem is not None:
            raise Blocked(BlockCode.ARCHIVE, f"{reason}: {seen.problem}", hint=seen.hint)
        return reason

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                if not self.run_once(only=self._only):
                    return
            except LapseError as error:
                log.debug("export: %s", error.message)
                return
            except Exception:
                log.exception("exports met an error; the next round tries again")
                return
            self._due.wait(ROUND_SECONDS)
            self._due.clear()

    def run_once(self, *, everything: bool = False, only: StoredPolicy | None = None) -> bool:
        """One look at all tables whose rows go into files, or at `only` one; exports begin in threads of their own.
        True while another look soon may find more. With `everything` no row waits for others to fill a file with."""
        with self._looking:
            with self._catalog.reading() as connection:
                found = policies.policies_with_files(connection)
                if not found:
                    return False
                current = settings.load_settings(connection)
                working = {job.policy_id for job in jobs.active_jobs(connection)}
            self._bound = current.archive_backlog
            busy = False
            for stored in found:
                if stored.suspended is None and (only is None or only.id == stored.id) and not self._stop.is_set():
                    busy |= self._serve(stored, current, stored.id in working, everything=everything)
            return busy

    def finish(self, only: StoredPolicy | None = None) -> tuple[Export, ...]:
        """Before and after the jobs of a run: everything goes out. Returns what was written since the run began, and
        what is in the way."""
        if only is not None and (only.policy.archive is None or file_url(only.policy.archive) is None):
            return ()
        self._only = only
        self._retry_at.clear()
        for _ in range(FINISHING_ROUNDS):
            if self._stop.is_set() or not self.run_once(everything=True, only=only):
                break
            for thread in [each for key, each in list(self._at_work.items()) if only is None or key == only.id]:
                while thread.is_alive() and not self._stop.is_set():
                    thread.join(ROUND_SECONDS)
        found = self._done if only is None else {only.id: self._done[only.id]} if only.id in self._done else {}
        return tuple(each for each in found.values() if each.files or each.problem or each.waiting)

    # One table

    def _serve(self, stored: StoredPolicy, current: Settings, is_working: bool, *, everything: bool) -> bool:
        """True while rows may come, or go."""
        assert stored.policy.archive is not None
        place = Outbox.of(stored.table, stored.policy.archive, stored.version)
        try:
            waiting, unsettled, state = self._measure(place, stored)
        except DatabaseUnavailable:
            raise
        except Retryable as error:
            # What is locked there is this table's matter alone.
            log.debug("export of %s: %s", stored.table, error.message)
            return is_working
        except LapseError as error:
            self._note_problem(stored, place, error, ExportState(outbox=place.outbox))
            return is_working
        self._seen[stored.id] = _Seen(waiting=waiting, problem=state.problem, hint=state.hint)
        at_work = self._at_work.get(stored.id)
        if at_work is not None and at_work.is_alive():
            return True
        self._at_work.pop(stored.id, None)
        enough = min(ENOUGH_ROWS, max(1, current.archive_backlog // 2))
        is_ready = waiting and (everything or not is_working or waiting >= enough)
        is_due = bool(is_ready or unsettled or state.problem) and monotonic() >= self._retry_at.get(stored.id, 0.0)
        if is_due and len(self._at_work) < MOST_AT_ONCE:
            # While a job moves rows, what is there after a file would make a small one.
            least = enough if is_working and not everything else 1
            self._at_work[stored.id] = _started(
                f"lapse-export-{stored.id}", lambda: self._work(stored, place, state, waiting, least)
            )
        return is_working or is_due

    def _work(self, stored: StoredPolicy, place: Outbox, state: ExportState, waiting: int, least: int) -> None:
        try:
            with leased(self._catalog, place.outbox, self._owner, self._stop) as alive:
                if alive is not None:
                    self._note_done(stored, place, state, self._export(stored, place, alive, least))
                else:
                    before = self._done.get(stored.id, Export(table=stored.table, destination=place.destination))
                    self._done[stored.id] = replace(before, waiting=waiting)
        except (Retryable, DatabaseUnavailable, Interrupted) as error:
            log.debug("export of %s: %s", stored.table, error.message)
            with suppress(LapseError):
                self._give_back(place)
        except LapseError as error:
            with suppress(LapseError):
                self._note_problem(stored, place, error, state, waiting)
        except Exception:
            log.exception("rows of table %s were not exported", stored.table)
            self._retry_at[stored.id] = monotonic() + RETRY_SECONDS

    def _measure(self, place: Outbox, stored: StoredPolicy) -> tuple[int, bool, ExportState]:
        with self._engine.outbox(place.staging) as connection:
            waiting = self._engine.archive_table(connection, place.staging).waiting(connection)
        with self._catalog.reading() as connection:
            keep = stored.policy.archive_keep
            before = None if keep is None else keep.subtracted_from(self._engine.now(connection))
            left = archive_files.unsettled(connection, place.outbox, old_before=before)
            here = any(file.destination == place.destination for file in left)
            state = exports.read(connection, place.outbox)
        if waiting != state.waiting and monotonic() - self._noted_at.get(stored.id, float("-inf")) > NOTED_SECONDS:
            self._noted_at[stored.id] = monotonic()
            with self._catalog.writing(durable=False) as connection:
                exports.note_waiting(connection, place.outbox, waiting)
        return waiting, here, state

    def _export(self, stored: StoredPolicy, place: Outbox, alive: Callable[[], None], least: int) -> Exported:
        with self._catalog.reading() as connection:
            archive = open_claimed(connection, place.destination)
            keep = stored.policy.archive_keep
            keep_after = None if keep is None else keep.subtracted_from(self._engine.now(connection))
        return Exporter(self._catalog, archive, place, alive=alive).run_once(keep_after=keep_after, least=least)

    def _note_done(self, stored: StoredPolicy, place: Outbox, state: ExportState, done: Exported) -> None:
        self._retry_at.pop(stored.id, None)
        with self._catalog.writing(durable=False) as connection:
            now = self._engine.now(connection)
            exports.release(connection, place.outbox, self._owner, now=now, exported=bool(done.files))
            if state.problem is not None:
                policies.unblock_tables(connection, stored.id, BlockCode.ARCHIVE)
        if state.problem is not None:
            log.info("table %s: rows are exported to %s again", stored.table, place.destination)
        before = self._done.get(stored.id, Export(table=stored.table, destination=place.destination))
        self._done[stored.id] = replace(
            before,
            files=before.files + len(done.files),
            rows=before.rows + done.rows,
            bytes=before.bytes + done.bytes,
            problem=None,
            hint=None,
            waiting=0,
        )

    def _note_problem(
        self, stored: StoredPolicy, place: Outbox, error: LapseError, state: ExportState, waiting: int = 0
    ) -> None:
        self._retry_at[stored.id] = monotonic() + RETRY_SECONDS
        problem, hint = f"rows of table {stored.table} are not exported: {error.message}", error.hint
        if isinstance(error, NotPermitted):
            hint = "lapse doctor URL, as the worker's role, prints the GRANT"
        with self._catalog.writing(durable=False) as connection:
            if exports.take(connection, place.outbox, self._owner, self._engine.stopwatch(connection)):
                now = self._engine.now(connection)
                exports.release(
                    connection, place.outbox, self._owner, now=now, problem=problem, hint=hint, waiting=waiting
                )
        if state.problem != problem:
            log.warning("%s; %s", problem, hint or "it is tried again")
        before = self._done.get(stored.id, Export(table=stored.table, destination=place.destination))
        self._done[stored.id] = replace(before, problem=problem, hint=hint)

    def _give_back(self, place: Outbox) -> None:
        with self._catalog.writing(durable=False) as connection:
            exports.give_back(connection, place.outbox, self._owner)
