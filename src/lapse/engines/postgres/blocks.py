"""Deleting in physical order: windows of heap blocks, as wide as the time allows."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Batch, Checkpoint, Stretch
from lapse.engines.postgres import origin, stretches
from lapse.engines.postgres.delete import CHANCE_MS, QUERY_CANCELED, WORKING, PostgresDeleter, Seen, Work, reason_of
from lapse.engines.postgres.errors import LOCK_NOT_AVAILABLE, sqlstate
from lapse.engines.postgres.replicas import Reader
from lapse.engines.postgres.session import POOLED, SAFELY, roll_back, set_locally
from lapse.errors import Retryable

SCAN_SECONDS = 0.05
"""A statement that finds little may read for about this long."""
FIRST_BLOCKS, MIN_BLOCKS, MAX_BLOCKS = 4096, 8, 1 << 17

SWEEP_SHARE = 0.8
"""Of the limit, how much a sweep of whole blocks aims at, so that it rarely finds more."""
SWEEP_MIN_ROWS = 100
"""Below this, chance would exceed the limit too often."""
SWEEP_MS = 200
SPARSE_ROWS = 20
"""Where fewer than one row of so many has expired, batches go one by one."""
MAX_REFUSED = 3
"""Stretches that ended with an error, other than by a lock, until the rest of a task goes batch by batch."""
STANDBY_BLOCKS = 1 << 17
"""A standby may read so many blocks, a gigabyte, for one answer."""
STANDBY_MS = 10_000


class BlockDeleter(PostgresDeleter):
    """Physical order: windows of heap blocks. A cursor is the first address not yet read, `block,line`."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._blocks = FIRST_BLOCKS
        self._end = int(work.span.end or 0)
        self._until = self._end
        self._density: float | None = None
        self._refused = 0

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        if self._work.reader is not None:
            passed = self._pass_what_a_standby_shows(self._work.reader, limit)
            if passed is not None:
                self._cursor = passed.cursor
                return passed
        return super().step(limit, checkpoint)

    def _pass_what_a_standby_shows(self, reader: Reader, limit: int) -> Batch | None:
        """Where a standby shows nothing that has expired, the primary is not asked at all; otherwise it begins at the
        first such row and reads as far as the last of a batch."""
        self._until = self._end
        first, _ = self._position
        far = min(self._end, first + STANDBY_BLOCKS)
        with self._work.connect() as connection:
            seen = reader.ask(connection, lambda standby: self._seen_on(standby, 1, far))
            if seen is None:
                return None
            if not seen.count:
                examined = int((far - first) * self._work.rows_per_block)
                return Batch(examined=examined, cursor=f"{far},0", done=far >= self._end)
            block, line = _place(seen.last)
            self._cursor = f"{block},{line}"
            end = min(self._end, block + self._blocks)
            seen = reader.ask(connection, lambda standby: self._seen_on(standby, limit, end))
        if seen is not None and seen.count:
            self._until = _place(seen.last)[0] + 1
        return None

    def _seen_on(self, standby: Connection, limit: int, end: int) -> Seen:
        places = [_address(*self._position), _address(end, 0)]
        call = self._message("pass blocks", limit=limit, places=places)
        settings = set_locally(WORKING | {"statement_timeout": str(STANDBY_MS)})
        begin = "; ".join(["BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY", SAFELY, *settings, ""])
        try:
            return Seen(**self._work.function.call(standby, call, begin=begin))
        finally:
            roll_back(standby, "ROLLBACK")

    def _optimistic(self, connection: Connection, limit: int, checkpoint: Checkpoint) -> Batch:
        blocks = self._blocks_for(limit)
        batch = self._sweep(connection, limit, blocks, checkpoint) if blocks else None
        return batch or super()._optimistic(connection, limit, checkpoint)

    def _blocks_for(self, limit: int) -> int:
        """How many blocks probably hold somewhat fewer than `limit` expired rows; 0 where that is not to be tried."""
        work = self._work
        if work.is_held or work.has_row_triggers or work.keeps_last or limit < SWEEP_MIN_ROWS:
            return 0
        if self._density is None:
            left = self._until - self._position[0]
            return left if left * work.rows_per_block <= limit and left <= self._blocks else 0
        return min(self._blocks, int(SWEEP_SHARE * limit / max(self._density, 1e-9)))

    def _sweep(self, connection: Connection, limit: int, blocks: int, checkpoint: Checkpoint) -> Batch | None:
        """Delete what has expired in these blocks by reading them once; None if it was more than `limit` or took long.

        It is as fast as a DELETE without bounds. The bound is kept by rolling back, which is rare, as the share of
        expired rows seldom changes from one window to the next.
        """
        started = perf_counter()
        (first, line), end = self._position, min(self._until, self._position[0] + blocks)
        try:
            call = self._message("sweep", limit=limit, places=[_address(first, line), _address(end, 0)])
            begin = self._begin(CHANCE_MS, statement_timeout=str(SWEEP_MS))
            seen = self._asked(connection, call, begin=begin)
            rows = seen.deleted
            batch = Batch(
                examined=max(rows, int((end - first) * self._work.rows_per_block)),
                selected=rows,
                deleted=rows,
                cursor=f"{end},0",
                done=end >= self._end,
                busy_seconds=self._busy(perf_counter() - started),
                noted=seen.noted,
            )
            if 0 < rows <= limit:
                checkpoint(connection, batch)
                self._close(connection, origin.commit(self._work.origin))
            else:
                self._close(connection, origin.rollback(self._work.origin))
        except DBAPIError as error:
            roll_back(connection, origin.rollback(self._work.origin))
            if sqlstate(error.orig) != QUERY_CANCELED or "user request" in str(error.orig):
                raise
            self._density = None
            self._shrink()
            return None
        except BaseException:
            roll_back(connection, origin.rollback(self._work.origin))
            raise
        self._density = rows / (end - first)
        if rows > limit:
            return None
        seconds = perf_counter() - started
        self._fit(rows, limit, seconds)
        return replace(batch, locked_seconds=seconds)

    @property
    def stretches(self) -> bool:
        """Not where each batch takes more than its function, where locks were met, where few rows have expired, and
        while nothing is known of how many."""
        work = self._work
        if work.reader is not None or work.origin is not None or work.is_keyed:
            return False
        is_dense = self._density is not None and self._density >= self._sparse
        return is_dense and not self._skip_locked_steps and self._refused < MAX_REFUSED

    @property
    def _sparse(self) -> float:
        """Below so many expired rows in a block a window would be so wide that, where it is denser than the last, its
        statement takes too long; only a single one is stopped in time."""
        return self._work.rows_per_block / SPARSE_ROWS

    def stretch(self, limit: int, within: Stretch) -> Batch | None:
        blocks = self._blocks_for(limit)
        if not blocks:
            return None
        (block, line), most = self._position, self._blocks
        window = stretches.Window(
            block=block,
            line=line,
            blocks=blocks,
            most=most,
            end=self._end,
            density=self._density or 0.0,
            sparse=self._sparse,
            fill=SWEEP_SHARE,
        )
        with self._work.connect() as connection, self.watched(connection):
            if connection.info.get(POOLED):
                return None
            try:
                went = stretches.go(connection, self._work, limit, within, window, slowest_ms=SWEEP_MS)
            except DBAPIError as error:
                if error.connection_invalidated or "user request" in str(error.orig):
                    raise
                if sqlstate(error.orig) == LOCK_NOT_AVAILABLE:
                    self._skip_locked_steps = 1
                else:
                    self._density = None
                    self._refused += 1
                raise Retryable(reason_of(error)) from error
        self._density = went.density if went.windows else None
        if went.windows:
            self._fit(went.rows // went.windows, limit, went.busy / went.windows)
        self._cursor = f"{went.block},{went.line}"
        locked = sum(went.holds)
        return Batch(
            examined=max(went.rows, int((went.block - block) * self._work.rows_per_block)),
            selected=went.rows,
            deleted=went.rows,
            cursor=self._cursor,
            done=went.block >= self._end,
            locked_seconds=locked,
            busy_seconds=locked,
            read_seconds=went.busy - locked,
            holds=tuple(went.holds),
            rested_seconds=went.rested,
            size=went.size,
            row_seconds=went.row_seconds,
        )

    def go_on(self, cursor: str | None) -> None:
        self._cursor = cursor

    @property
    def _position(self) -> tuple[int, int]:
        if self._cursor is None:
            return int(self._work.span.start or 0), 0
        block, line = self._cursor.split(",")
        return int(block), int(line)

    def _window_end(self, everything: bool) -> int:
        return self._end if everything else min(self._until, self._position[0] + self._blocks)

    def _call(self, limit: int, *, careful: bool = False, passing: bool = False) -> str:
        operation = "pass blocks" if passing else "blocks"
        places = [_address(*self._position), _address(self._window_end(passing), 0)]
        return self._message(operation, limit=limit, careful=careful, places=places)

    def _batch(self, seen: Seen, limit: int, *, everything: bool = False) -> Batch:
        first, _ = self._position
        block, line = self._window_end(everything), 0
        if seen.count >= limit:
            block, line = _place(seen.last)
            line += 1
        self._density = seen.count / max(block - first, 1)
        return Batch(
            examined=max(seen.count, int((block - first) * self._work.rows_per_block)),
            selected=seen.count,
            deleted=seen.deleted,
            cursor=f"{block},{line}",
            done=block >= self._end,
        )

    def _learn(self, seen: Seen, limit: int, seconds: float) -> None:
        self._fit(seen.count, limit, seconds)

    def _fit(self, rows: int, limit: int, seconds: float) -> None:
        if seconds > 2 * SCAN_SECONDS:
            self._shrink()
        elif rows < limit and seconds < SCAN_SECONDS:
            self._blocks = min(self._blocks * 2, MAX_BLOCKS)

    def _shrink(self) -> None:
        self._blocks = max(self._blocks // 2, MIN_BLOCKS)


def _place(address: str) -> tuple[int, int]:
    block, line = address.strip("()").split(",")
    return int(block), int(line)


def _address(block: int, line: int) -> str:
    return f"({block},{line})"
