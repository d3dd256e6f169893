"""What happens to the expired rows that a batch has found: one step, with one interface in every engine.

An engine says which rows are meant, in its own SQL, and executes the statements of the action in the transaction of the
batch. Rows are deleted, or moved to an archive table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from lapse.errors import LapseError, Retryable
from lapse.model.archive import ARCHIVED_AT, JOB


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of one batch, in SQL: `condition` is true for expired rows only, `bound` limits how many there can be.

    `extra` leaves out more of them, `suffix` orders and limits. `hint` tells the server how to find them.
    """

    table: str
    condition: str
    bound: str
    extra: str = ""
    suffix: str = ""
    hint: str = ""

    def __post_init__(self) -> None:
        for name, part in (("table", self.table), ("condition", self.condition), ("bound", self.bound)):
            if not part.strip():
                raise LapseError(f"refusing to build a DELETE without its {name}")

    @property
    def found(self) -> str:
        extra = f" AND {self.extra}" if self.extra else ""
        return f"{self.bound} AND {self.condition}{extra}"

    @property
    def where(self) -> str:
        return f"{self.found}{self.suffix}"


class Action(ABC):
    @abstractmethod
    def statements(self, rows: Rows) -> tuple[str, ...]:
        """What a batch executes, in this order. The last statement deletes; its row count is that of the batch, and
        every statement before it must have met as many rows: `moved` says so."""


class Delete(Action):
    """The one place where a DELETE is put together; it cannot make one without an expiry condition and a bound."""

    def statements(self, rows: Rows) -> tuple[str, ...]:
        return (f"DELETE {rows.hint}FROM {rows.table} WHERE {rows.where}",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Move(Action):
    """Rows are copied to an archive table, then deleted.

    The copy locks what it reads where rows are locked, so that each of them is still there, and still expired, when the
    second statement comes. That one may find more, but not fewer; as it has no limit, an equal number of rows says that
    they are the same.
    """

    archive: str
    columns: tuple[str, ...]
    now: str
    job: int
    lock: str = ""

    def statements(self, rows: Rows) -> tuple[str, ...]:
        columns = ", ".join(self.columns)
        copy = (
            f"INSERT INTO {self.archive} ({columns}, {ARCHIVED_AT}, {JOB})"
            f" SELECT {rows.hint}{columns}, {self.now}, {int(self.job)} FROM {rows.table} WHERE {rows.where}{self.lock}"
        )
        return (copy, f"DELETE {rows.hint}FROM {rows.table} WHERE {rows.found}")


def moved(counts: Sequence[int]) -> int:
    """The rows of a batch, by those that each statement has met. Raises Retryable where they were not the same."""
    if len(set(counts)) > 1:
        raise Retryable(
            f"{counts[0]} rows were archived and {counts[-1]} deleted, because others changed them meanwhile: undone"
        )
    return counts[-1]
