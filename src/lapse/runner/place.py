"""Copies of a database: their policies delete nothing until a person says that they may delete there, too.

A restart and a failover change the server but not the way to it; the same server may be reached in several ways. A copy
is another server, or another file, that is reached in a way never seen before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from lapse.catalog import Catalog, meta, policies
from lapse.engines.base import Place
from lapse.model.blocked import BlockCode
from lapse.runner.retry import retried

REMEMBERED = 20
"""Ways to reach a database that are remembered; the oldest are forgotten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """Where a database was last seen, and in which ways it was reached."""

    incarnation: str
    endpoints: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Known:
        found = json.loads(text)
        return cls(incarnation=found["incarnation"], endpoints=tuple(found["endpoints"]))

    def written(self) -> str:
        return json.dumps({"incarnation": self.incarnation, "endpoints": list(self.endpoints)})

    def has_moved_to(self, place: Place) -> Known | None:
        """What is known after a look from `place`; None where that is a copy."""
        if place.incarnation != self.incarnation and place.endpoint not in self.endpoints:
            return None
        others = [endpoint for endpoint in self.endpoints if endpoint != place.endpoint]
        return Known(incarnation=place.incarnation, endpoints=(*others, place.endpoint)[-REMEMBERED:])


class PlaceGuard:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._seen: Place | None = None

    def run_once(self) -> bool:
        """True when this database was found to be a copy just now, and its policies were suspended."""
        with self._catalog.reading() as connection:
            place = self._catalog.engine.place(connection)
            return self.look(place, meta.read_fact(connection, meta.PLACE))

    def look(self, place: Place | None, known: str | None) -> bool:
        """As `run_once`, with where the database is, and what was known of that a moment ago."""
        if place is None or place == self._seen:
            return False
        copied = (known is None or _after(known, place) != known) and self._note(place)
        self._seen = place
        return copied

    @retried
    def _note(self, place: Place) -> bool:
        with self._catalog.writing() as connection:
            return note_place(connection, place, self._catalog.engine.now(connection))


def note_place(connection: Connection, place: Place, now: datetime) -> bool:
    """Remember where the database is, in the caller's transaction; True if it is a copy, now suspended."""
    before = meta.read_fact(connection, meta.PLACE)
    here = Known(incarnation=place.incarnation, endpoints=(place.endpoint,)).written()
    after = here if before is None else _after(before, place)
    if after is not None and after == before:
        return False
    # Of workers that look at the same time one writes; the others find what it wrote.
    written = meta.replace_fact(connection, meta.PLACE, before, after or here)
    if after is None and written:
        policies.suspend_policies(connection, BlockCode.DATABASE_COPIED, now)
        # Files of the database that this is a copy of stay that database's.
        meta.forget_fact(connection, meta.ARCHIVE_OWNER)
    return after is None and written


def _after(known: str, place: Place) -> str | None:
    """What is known after a look from `place`; None where that is a copy."""
    moved = Known.read(known).has_moved_to(place)
    return None if moved is None else moved.written()
