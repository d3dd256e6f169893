"""A hold: rows of a table that stay whatever expires, until a person releases them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from lapse.errors import InvalidValue
from lapse.model.table import TableName


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """`where` says which rows, None all of them; at `until`, by the database's clock, it ends by itself."""

    id: int
    table: TableName
    where: str | None = None
    until: datetime | None = None
    reason: str | None = None
    placed_at: datetime
    placed_by: str | None = None
    released_at: datetime | None = None
    released_by: str | None = None

    @property
    def term(self) -> HeldTerm:
        return HeldTerm(id=self.id, where=self.where, until=self.until)

    @property
    def rows(self) -> str:
        """Which rows, in words."""
        return "all rows" if self.where is None else f"rows with {self.where}"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldTerm:
    """What a policy knows of a hold on its table."""

    id: int
    where: str | None
    until: datetime | None


def read_instant(text: str, name: str) -> datetime:
    """An instant as a person writes it, such as when a hold ends by itself. Raises InvalidValue."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(name, text, "must be ISO 8601, such as 2030-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        raise InvalidValue(name, text, "has no zone", hint=f"write {found.isoformat()}Z for UTC")
    return found


def write_terms(terms: Iterable[HeldTerm]) -> str | None:
    """None where nothing is held."""
    written = [[term.id, term.where, term.until and term.until.isoformat()] for term in terms]
    return json.dumps(written) if written else None


def read_terms(text: str | None) -> tuple[HeldTerm, ...]:
    return tuple(
        HeldTerm(id=number, where=where, until=None if until is None else datetime.fromisoformat(until))
        for number, where, until in json.loads(text or "[]")
    )
