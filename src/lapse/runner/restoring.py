"""Restoring: archived rows go back into their table in bounded batches, each of them once whatever is killed when.

A batch inserts a page of rows and removes them from the archive in one transaction. Rows whose key exists again stay in
the archive, and so do rows that the table refuses; both are counted. What comes back has expired, so before the first
row does, a hold keeps it from being deleted again; rows with a managed column get a new expiry instead. Rows in files
come back one file at a time, once all of these files have been read and found to be what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from time import perf_counter
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.catalog import Catalog, jobs, policies
from lapse.catalog.archive_files import StoredFile
from lapse.catalog.policies import StoredPolicy
from lapse.ddl.literal import quote_if_needed, quote_text
from lapse.engines.archive import ArchiveShape
from lapse.engines.restoring import ArchiveTable
from lapse.errors import (
    DatabaseError,
    DatabaseUnavailable,
    Drift,
    InvalidValue,
    LapseError,
    NotFound,
    NotPermitted,
    PolicyConflict,
    Retryable,
    RowUndeletable,
    TableNotFound,
)
from lapse.model.archive import archive_table, destination, file_url
from lapse.model.hold import HeldTerm, Hold
from lapse.model.interval import DAY, Interval
from lapse.model.policy import ColumnExpiry
from lapse.model.table import MANAGED_COLUMN, Table, TableName
from lapse.runner.exporting import FILE_ROWS, Outbox
from lapse.runner.holds import NEVER, Holder
from lapse.runner.pacing import Pacer, pacing
from lapse.runner.policy_manager import bind
from lapse.runner.recalling import Recall, Recalled, undone

DEFAULT_KEEP = Interval(micros=7 * DAY)
"""How long restored rows are held."""
FIRST_BATCH, SMALLEST_BATCH, LARGEST_BATCH = 500, 50, 5_000
MOST_RETRIES = 10

Progress = Callable[["Restored"], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which rows to restore, and how. `since` and `until` are about when they were archived; `keep` of zero length
    places no hold."""

    job: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    where: str | None = None
    into: TableName | None = None
    keep: Interval = DEFAULT_KEEP
    ignore_missing_columns: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """`rows` were there to be restored, `restored` of them came back, `existing` were left alone because their key is
    in the table, and `refused` because the table did not take them, for `reason`. `dropped` columns of the archive are
    not in the table any more. `hold` keeps what came back."""

    table: TableName
    archive: str
    rows: int
    restored: int = 0
    existing: int = 0
    refused: int = 0
    reason: str | None = None
    dropped: tuple[str, ...] = ()
    hold: Hold | None = None
    dry_run: bool = False
    waiting: str | None = None
    """What the next batch waits for, while it does."""

    @property
    def is_complete(self) -> bool:
        return not self.refused


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """From where to where, checked: `columns` are those that travel, `terms` say which rows. With a `recall`, rows are
    in files as well, and `archive` is their outbox."""

    archive: TableName
    shown: str
    recall: Recall | None
    source: ArchiveTable
    table: Table
    stored: StoredPolicy | None
    columns: tuple[str, ...]
    dropped: tuple[str, ...]
    terms: tuple[str, ...]
    packed: tuple[str, ...]
    """Terms for the packs that may hold such rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Survey:
    """Rows that are meant, those of them whose key is in the table, and the ranges of the expiry column."""

    rows: int = 0
    existing: int = 0
    spans: tuple[tuple[Any, Any], ...] = ()

    def with_file(self, both: _Survey, there: _Survey) -> _Survey:
        """`both` was measured with the rows of the file beside those that were `there`."""
        return _Survey(
            rows=self.rows + both.rows - there.rows,
            existing=self.existing + both.existing - there.existing,
            spans=(*self.spans, *both.spans),
        )


class Restorer:
    def __init__(self, catalog: Catalog, gate_sql: str | None = None) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._holder = Holder(catalog)
        self._gate_sql = gate_sql

    def look(self, name: TableName, wanted: Wanted) -> Restored:
        """What `restore` would do; changes nothing."""
        with self._engine.connection() as connection:
            way = self._way(connection, name, wanted)
        found = self._survey(way, way.recall.files() if way.recall else (), is_dry=True)
        return replace(self._begun(way, found), existing=found.existing, dry_run=True)

    def restore(self, name: TableName, wanted: Wanted, progress: Progress | None = None) -> Restored:
        with self._engine.connection() as connection:
            way = self._way(connection, name, wanted)
        if way.recall is None:
            return self._restore(way, wanted, progress, Recalled(files=(), alive=_nothing))
        with way.recall.held() as recalled:
            return self._restore(way, wanted, progress, recalled)

    def _restore(self, way: _Way, wanted: Wanted, progress: Progress | None, recalled: Recalled) -> Restored:
        self._unpack(way, recalled.alive)
        found = self._survey(way, recalled.files)
        done = self._begun(way, found)
        if not done.rows:
            return done
        latest = replace(done, hold=self._hold(way, wanted, found))

        def tell(now: Restored) -> None:
            nonlocal latest
            latest = now
            recalled.alive()
            if progress is not None:
                progress(now)

        try:
            return self._come_back(way, latest, recalled, tell)
        except PolicyConflict:
            if latest.hold is not None and not latest.restored:
                # Nothing has come back that it would keep.
                with self._catalog.writing() as connection:
                    self._holder.release(connection, latest.hold.id)
            raise

    def _come_back(self, way: _Way, done: Restored, recalled: Recalled, tell: Progress) -> Restored:
        with pacing(self._catalog, way.stored, self._gate_sql, is_long=done.rows > FIRST_BATCH) as pace:
            done = self._empty(way, done, pace, tell)
            for file in recalled.files:
                assert way.recall is not None
                way.recall.bring_back(file, recalled.alive)
                done = self._empty(way, done, pace, tell)
                way.recall.put_away(recalled.alive)
        return done

    def _empty(self, way: _Way, done: Restored, pace: Pacer, tell: Progress) -> Restored:
        """Batches, until no row that is meant is left in the archive table or outbox."""
        after, size, retries = 0, FIRST_BATCH, 0
        while True:
            pace.before(size, partial(_tell_waiting, tell, done))
            started = perf_counter()
            try:
                last, step = self._step(way, after, size)
            except Retryable:
                retries += 1
                if retries > MOST_RETRIES:
                    raise
                size = max(SMALLEST_BATCH, size // 2)
                continue
            if last is None:
                return done
            after, retries = last, 0
            done = _sum(done, step)
            seconds = perf_counter() - started
            size = _fitting(size, seconds, pace.batch_seconds(self._engine.features.target_seconds))
            tell(done)
            pace.after(seconds)

    # Before anything is changed

    def _begun(self, way: _Way, found: _Survey) -> Restored:
        return Restored(table=way.table.name, archive=way.shown, rows=found.rows, dropped=way.dropped)

    def _packs(self, way: _Way) -> list[int]:
        with self._engine.connection() as connection:
            return way.source.packs(connection, way.packed)

    def _unpack(self, way: _Way, alive: Callable[[], None]) -> None:
        """Then rows can be chosen one by one. Those that are not meant stay in the outbox by themselves."""
        for number in self._packs(way):
            alive()
            with self._catalog.writing() as connection:
                self._engine.packs.unpack(connection, way.archive, number)

    def _survey(self, way: _Way, files: Sequence[StoredFile], *, is_dry: bool = False) -> _Survey:
        """What there is to restore. Every file is read, and stops a restore that has not begun where it is not what was
        recorded."""
        with self._engine.connection() as connection:
            there = total = self._measure(connection, way, is_dry)
        for file in files:
            assert way.recall is not None
            both = way.recall.look(file, lambda connection: self._measure(connection, way, is_dry))
            total = total.with_file(both, there)
        for both in self._looks_into_packs(way) if is_dry else ():
            total = total.with_file(both, there)
        return total

    def _looks_into_packs(self, way: _Way) -> Iterator[_Survey]:
        """With the rows of as many packs at once as a file has rows."""
        packs = self._packs(way)
        while packs:
            with undone(self._engine) as connection:
                rows = 0
                while packs and rows < FILE_ROWS:
                    rows += self._engine.packs.unpack(connection, way.archive, packs.pop(0))
                found = self._measure(connection, way, is_dry=True)
            yield found

    def _measure(self, connection: Connection, way: _Way, is_dry: bool) -> _Survey:
        """Keys that are in the table are looked for where that is to be told: every batch does so again."""
        rows = way.source.count(connection, way.terms)
        if not rows:
            return _Survey()
        pages = self._pages(connection, way, FIRST_BATCH) if is_dry else ()
        existing = sum(len(self._existing(connection, way, page)) for page in pages)
        column = _spanned(way)
        first, last = (None, None) if column is None else way.source.span(connection, way.terms, column)
        return _Survey(rows=rows, existing=existing, spans=((first, last),))

    def _pages(self, connection: Connection, way: _Way, size: int) -> Sequence[Sequence[int]]:
        pages: list[list[int]] = []
        after = 0
        while page := [number for number, _ in way.source.page(connection, way.terms, after, size)]:
            pages.append(page)
            after = page[-1]
        return pages

    def _way(self, connection: Connection, name: TableName, wanted: Wanted) -> _Way:
        bound = self._catalog.bind(connection)
        table = self._engine.describe(connection, wanted.into or name)
        text = self._archive_of(bound, name, wanted.job)
        place = archive_table(text, name)
        shape = self._engine.archive_shape(connection, place, table.name)
        if shape is None or not shape.is_archive:
            raise TableNotFound(
                f"archive table {place} does not exist any more, or is not one of Lapse's",
                hint=None if file_url(text) is None else "lapse doctor URL --repair makes the outbox of a policy anew",
            )
        stored = policies.find_policy(bound, table.name)
        columns, dropped = self._columns(connection, table, shape, wanted)
        if _is_stamped(stored):
            columns = tuple(column for column in columns if column != MANAGED_COLUMN)
        source = self._engine.archive_table(connection, place)
        terms = source.chosen(
            job=wanted.job,
            since=wanted.since,
            until=wanted.until,
            where=self._compiled(connection, place, wanted.where),
        )
        return _Way(
            archive=place,
            shown=str(place) if file_url(text) is None else destination(text),
            recall=None if file_url(text) is None else Recall(self._catalog, Outbox.of(name, text), _chosen(wanted)),
            source=source,
            table=table,
            stored=stored,
            columns=columns,
            dropped=dropped,
            terms=terms,
            packed=source.chosen(job=wanted.job, since=wanted.since, until=wanted.until, where=None),
        )

    def _compiled(self, connection: Connection, place: TableName, where: str | None) -> str | None:
        """In the engine's own SQL: names and texts are quoted in other ways there. Raises UsageError."""
        if where is None:
            return None
        if not where.strip():
            raise InvalidValue("where", where, "is empty", hint="leave it out to restore all rows")
        chosen = bind(self._engine.describe(connection, place), NEVER, [HeldTerm(id=0, where=where, until=None)])
        (left,) = self._engine.condition(connection, chosen, self._engine.now(connection)).required
        return f"NOT ({left})"

    def _archive_of(self, connection: Connection, name: TableName, job: int | None) -> str:
        """That of the job, of the policy, or of the last job for the table: rows outlive the policy."""
        if job is not None:
            found = jobs.get_job(connection, job)
            if found.archive is None:
                raise NotFound(f"job {job} archived nothing: its rows are gone", hint="SET (ttl_archive = 'table:')")
            return found.archive
        stored = policies.find_policy(connection, self._engine.full_name(connection, name))
        archive = (stored and stored.policy.archive) or jobs.last_archive(connection, name)
        if archive is None:
            raise NotFound(f"table {name} has no archive", hint=f"ALTER TABLE {name} SET (ttl_archive = 'table:')")
        return archive

    def _columns(
        self, connection: Connection, table: Table, shape: ArchiveShape, wanted: Wanted
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those that travel, and those that the table has lost. Raises PolicyConflict where a type has changed."""
        there = ArchiveShape(columns=self._engine.column_types(connection, table.name), folds=shape.folds)
        dropped = tuple(column for column in shape.columns if there.type_of(column) is None)
        if dropped and not wanted.ignore_missing_columns:
            raise PolicyConflict(
                f"table {table.name} has no column {', '.join(dropped)} any more, and the archived rows do",
                hint="--ignore-missing-columns restores them without; --into OTHER puts them into another table",
            )
        changed = [
            f"{column} ({kind} in the archive, {there.type_of(column)} in the table)"
            for column, kind in shape.columns.items()
            if column not in dropped and there.type_of(column) != kind
        ]
        if changed:
            raise PolicyConflict(
                f"columns of table {table.name} have another type than the archived rows: {', '.join(changed)}",
                hint="--into OTHER puts them into a table with the former types",
            )
        computed = {column.name for column in table.columns if column.generated}
        return tuple(c for c in shape.columns if c not in dropped and c not in computed), dropped

    # Held before they come back

    def _hold(self, way: _Way, wanted: Wanted, found: _Survey) -> Hold | None:
        if way.stored is None or not wanted.keep or _is_stamped(way.stored):
            return None
        with self._catalog.writing() as connection:
            return self._holder.place(
                connection,
                way.table,
                where=_held(way, found),
                until=wanted.keep.added_to(self._engine.now(connection)),
                reason=f"restored from {way.shown}" + ("" if wanted.job is None else f", job {wanted.job}"),
            )

    # Batches

    def _step(self, way: _Way, after: int, size: int) -> tuple[int | None, Restored]:
        """One page; None where there is none left."""
        nothing = Restored(table=way.table.name, archive=way.shown, rows=0)
        with self._catalog.writing() as connection:
            page = dict(way.source.page(connection, way.terms, after, size))
            if not page:
                return None, nothing
            existing = self._existing(connection, way, page)
            wanted = [number for number in page if number not in existing]
            step = replace(nothing, existing=len(existing))
            with self._engine.restoring(connection, way.table):
                try:
                    taken = self._insert(connection, way, wanted)
                except (DatabaseError, RowUndeletable) as error:
                    if _is_of_the_session(error):
                        raise
                    self._refuse_without_partition(connection, way, wanted, error)
                    taken, step = self._by_values(connection, way, wanted, step)
            counts = _by_job(page, taken)
            jobs.count_restored(connection, way.table.name, way.shown, counts, self._engine.now(connection))
        return max(page), replace(step, restored=len(taken))

    def _refuse_without_partition(
        self, connection: Connection, way: _Way, numbers: Collection[int], error: LapseError
    ) -> None:
        """Raises PolicyConflict where the partition of a row is gone, which undoes the batch: so may be those of many
        rows, and to try them one by one would take long and end with the same."""
        cause = error.__cause__
        if not (isinstance(cause, DBAPIError) and self._engine.archives.lacks_partition(cause)):
            return
        table = way.table.name
        column = self._engine.range_column(connection, way.table)
        spanned = ""
        if column is not None and column in way.columns:
            first, last = way.source.span_of(connection, numbers, column)
            spanned = f"; those of this batch have {column} from {first} to {last}"
        raise PolicyConflict(
            f"table {table} has no partition for some of the rows: {error.message}{spanned}",
            hint="create the partition while the policy is paused (an empty one that has expired is dropped again), or"
            " --into OTHER puts the rows into another table",
        ) from error

    def _existing(self, connection: Connection, way: _Way, page: Collection[int]) -> set[int]:
        """As far as a query can tell: a key whose type has no operator of the server's own speaks up when rows are
        inserted."""
        try:
            with self._engine.atomic(connection):
                return way.source.existing(connection, page, way.table)
        except Drift:
            return set()

    def _by_values(
        self, connection: Connection, way: _Way, numbers: Sequence[int], step: Restored
    ) -> tuple[list[int], Restored]:
        """A column that the table was given since has no value in rows of before: where it must have one, they get its
        default."""
        required = [column.name for column in way.table.columns if not column.nullable and column.name in way.columns]
        groups = way.source.without(connection, numbers, required) if required else {(): list(numbers)}
        taken: list[int] = []
        for missing, group in groups.items():
            part = replace(way, columns=tuple(column for column in way.columns if column not in missing))
            some, step = self._together(connection, part, group, step) if missing else ([], step)
            if not some:
                some, step = self._one_by_one(connection, part, group, step)
            taken += some
        return taken, step

    def _together(
        self, connection: Connection, way: _Way, numbers: Sequence[int], step: Restored
    ) -> tuple[list[int], Restored]:
        try:
            return self._insert(connection, way, numbers), step
        except (DatabaseError, RowUndeletable) as error:
            if _is_of_the_session(error):
                raise
            return [], step

    def _insert(self, connection: Connection, way: _Way, numbers: Sequence[int]) -> list[int]:
        """All of them or none."""
        if not numbers:
            return []
        with self._engine.atomic(connection):
            inserted = way.source.put_back(connection, numbers, way.table.name, way.columns)
            removed = way.source.remove(connection, numbers)
            if not inserted == removed == len(numbers):
                raise DatabaseError(f"of {len(numbers)} rows {inserted} were inserted and {removed} removed: undone")
        return list(numbers)

    def _one_by_one(
        self, connection: Connection, way: _Way, numbers: Sequence[int], step: Restored
    ) -> tuple[list[int], Restored]:
        taken: list[int] = []
        for number in numbers:
            try:
                taken += self._insert(connection, way, [number])
            except (DatabaseError, RowUndeletable) as error:
                if _is_of_the_session(error):
                    raise
                cause = error.__cause__
                if isinstance(cause, DBAPIError) and self._engine.archives.is_duplicate(cause):
                    step = replace(step, existing=step.existing + 1)
                else:
                    step = replace(step, refused=step.refused + 1, reason=step.reason or error.message)
        return taken, step


def _chosen(wanted: Wanted) -> Callable[[StoredFile], bool]:
    """Files that can hold a row which is meant."""

    def is_meant(file: StoredFile) -> bool:
        after = wanted.since is None or file.last is None or file.last >= wanted.since
        before = wanted.until is None or file.first is None or file.first < wanted.until
        return after and before and wanted.job in (None, file.job)

    return is_meant


def _spanned(way: _Way) -> str | None:
    """The expiry column, where that is one column of the row."""
    if way.stored is None or way.stored.policy.partitions:
        return None
    expiry = way.stored.policy.expiry
    return expiry.column if isinstance(expiry, ColumnExpiry) and expiry.column in way.columns else None


def _held(way: _Way, found: _Survey) -> str | None:
    """The range of the expiry column that the rows span: nearly all rows in there have been deleted. Where the
    expiry is not one column of the row, all rows of the table, until the hold ends."""
    column = _spanned(way)
    if column is None:
        return None
    try:
        first = _literal(min(span[0] for span in found.spans))
        last = _literal(max(span[1] for span in found.spans))
    except TypeError:
        # Some are NULL, or of several types: then the whole table is held.
        return None
    if first is None or last is None:
        return None
    return f"{quote_if_needed(column)} >= {first} AND {quote_if_needed(column)} <= {last}"


def _tell_waiting(tell: Progress, done: Restored, reason: str) -> None:
    tell(replace(done, waiting=reason))


def _nothing() -> None:
    pass


def _is_of_the_session(error: LapseError) -> bool:
    """Not about a row."""
    return isinstance(error, Retryable | DatabaseUnavailable | NotPermitted)


def _is_stamped(stored: StoredPolicy | None) -> bool:
    """Does a managed column decide, which gives rows that come back the whole time?"""
    if stored is None or stored.policy.expire_after is None:
        return False
    expiry = stored.policy.expiry
    return isinstance(expiry, ColumnExpiry) and expiry.column == MANAGED_COLUMN


def _literal(value: object) -> str | None:
    """As an expression writes it; None for a value that it has no words for."""
    match value:
        case bool():
            return None
        case int() | Decimal():
            return str(value)
        case float():
            return repr(value)
        case datetime():
            return quote_text(value.isoformat(sep=" "))
        case date() | time():
            return quote_text(value.isoformat())
        case str():
            return quote_text(value)
        case _:
            return None


def _by_job(page: dict[int, int], taken: Collection[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for number in taken:
        counts[page[number]] = counts.get(page[number], 0) + 1
    return counts


def _sum(done: Restored, step: Restored) -> Restored:
    return replace(
        done,
        restored=done.restored + step.restored,
        existing=done.existing + step.existing,
        refused=done.refused + step.refused,
        reason=done.reason or step.reason,
    )


def _fitting(size: int, seconds: float, target: float) -> int:
    """As many rows as fit into the target time of a batch."""
    wanted = int(size * target / max(seconds, 1e-6))
    return max(SMALLEST_BATCH, min(wanted, 2 * size, LARGEST_BATCH))
