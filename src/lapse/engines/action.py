"""What happens to the expired rows that a batch has found: one step, with one interface in every engine.

An engine says which rows are meant, in its own SQL, and executes the statements of the action in the transaction of the
batch. Today rows are deleted. Something that has to happen to them first is another action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from lapse.engines.values import Declared
from lapse.errors import LapseError


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of one batch, in SQL: `condition` is true for expired rows only, `bound` limits how many there can be.

    `extra` leaves out more of them, `suffix` orders and limits.
    """

    table: str
    condition: str
    bound: str
    extra: str = ""
    suffix: str = ""

    def __post_init__(self) -> None:
        for name, part in (("table", self.table), ("condition", self.condition), ("bound", self.bound)):
            if not part.strip():
                raise LapseError(f"refusing to build a DELETE without its {name}")

    @property
    def where(self) -> str:
        extra = f" AND {self.extra}" if self.extra else ""
        return f"{self.bound} AND {self.condition}{extra}{self.suffix}"


class Action(ABC):
    @abstractmethod
    def statements(self, rows: Rows) -> tuple[str, ...]:
        """What a batch executes, in this order. The last statement deletes; its row count is that of the batch."""


class Delete(Action):
    """The one place where a DELETE is put together; it cannot make one without an expiry condition and a bound."""

    def statements(self, rows: Rows) -> tuple[str, ...]:
        return (f"DELETE FROM {rows.table} WHERE {rows.where}",)


def action_for(declared: Declared) -> Action:
    """What happens to the expired rows of a table."""
    return Delete()
