"""The ledger: what was done to policies, holds, settings and rows, as entries that are chained by hashes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

from lapse.model.table import TableName

FIRST = "0" * 64
"""What the first entry has for the hash of the one before it."""
_FORMAT = "lapse ledger 1"


class EntryKind(StrEnum):
    """What an entry records."""

    BEGAN = "began"
    FOUND = "found"
    DECLARED = "declared"
    CHANGED = "changed"
    REMOVED = "removed"
    RENAMED = "renamed"
    PAUSED = "paused"
    RESUMED = "resumed"
    GUARDED = "guarded"
    CONFIRMED = "confirmed"
    REQUESTED = "requested"
    CANCELLED = "cancelled"
    HELD = "held"
    RELEASED = "released"
    RUN = "run"
    ARCHIVED = "archived"
    ARCHIVE_REMOVED = "archive_removed"
    RESTORED = "restored"
    SETTING = "setting"
    CLOCK = "clock"
    SUSPENDED = "suspended"
    PRUNED = "pruned"


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEntry:
    """`sequence`, `previous` and `hash` are None until it is sealed, which happens soon after its transaction.

    `role` is the database's, told by the server; `user`, `host` and `program` are told by the process. `at`, an ISO
    8601 instant, `before` and `after`, canonical JSON, are texts as stored: what the hash covers is never interpreted.
    """

    id: int
    at: str
    kind: str
    table: TableName | None
    role: str | None
    user: str
    host: str
    program: str
    before: str | None
    after: str | None
    sequence: int | None = None
    previous: str | None = None
    hash: str | None = None

    def sealed_as(self, sequence: int, previous: str) -> str:
        """The hash of this entry at that place in the chain."""
        fields = (
            _FORMAT,
            str(sequence),
            previous,
            str(self.id),
            self.at,
            self.kind,
            None if self.table is None else self.table.schema or "",
            None if self.table is None else self.table.name,
            self.role,
            self.user,
            self.host,
            self.program,
            self.before,
            self.after,
        )
        return sha256(b"".join(map(_written, fields))).hexdigest()

    @property
    def was(self) -> dict[str, Any]:
        return _read(self.before)

    @property
    def became(self) -> dict[str, Any]:
        return _read(self.after)


def _read(text: str | None) -> dict[str, Any]:
    """What was tampered with is shown, too."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"unreadable": text}


def _written(value: str | None) -> bytes:
    """With its length before it, so that no two lists of fields are the same bytes."""
    if value is None:
        return b"-,"
    raw = value.encode("utf-8", "surrogatepass")
    return b"%d:%b," % (len(raw), raw)


def written_at(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def canonical(value: Mapping[str, Any] | None) -> str | None:
    """The one way to write it: sorted, without spaces, in ASCII."""
    if value is None:
        return None
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=_text)


def _text(value: object) -> str:
    return written_at(value) if isinstance(value, datetime) else str(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The newest sealed entry. Written down outside of the database it shows later that nothing before it is gone."""

    sequence: int
    hash: str

    def __str__(self) -> str:
        return f"{self.sequence}:{self.hash}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainVerdict:
    """`broken` says what is wrong with the first entry, by number, that is not what was sealed; None if nothing is.

    `waiting` entries are recorded and not sealed yet.
    """

    first: int
    head: Head
    entries: int
    waiting: int
    pruned: int = 0
    broken_at: int | None = None
    broken: str | None = None

    @property
    def holds(self) -> bool:
        return self.broken is None


@dataclass(slots=True)
class Chain:
    """Follows the sealed entries, which come in the order of their numbers, to the first that is wrong."""

    anchors: Mapping[int, str] = field(default_factory=dict)
    """Hashes that entries are known to have had, by number."""
    first: int | None = None
    count: int = 0
    head: Head = field(default_factory=lambda: Head(sequence=0, hash=FIRST))
    broken_at: int | None = None
    broken: str | None = None
    _came_after: str = FIRST
    _pruned: dict[int, str] = field(default_factory=dict)

    def follow(self, entries: Iterable[LedgerEntry]) -> bool:
        """False once something is wrong."""
        return all(self._accept(entry) for entry in entries)

    def _accept(self, entry: LedgerEntry) -> bool:
        assert entry.sequence is not None
        number, previous = entry.sequence, entry.previous or ""
        if not isinstance(number, int):
            # SQLite stores anything anywhere.
            return self.fail(self.head.sequence + 1, "is missing")
        if self.first is None:
            self.first, self._came_after = number, previous
        elif number != self.head.sequence + 1:
            return self.fail(self.head.sequence + 1, "is missing")
        elif previous != self.head.hash:
            return self.fail(number, f"does not follow entry {self.head.sequence}")
        if entry.hash != entry.sealed_as(number, previous):
            return self.fail(number, "was changed")
        if self.anchors.get(number, entry.hash) != entry.hash:
            return self.fail(number, "is another one than it was when its hash was noted")
        if entry.kind == EntryKind.PRUNED:
            self._pruned[int(entry.was["last"])] = str(entry.was["hash"])
        self.count += 1
        self.head = Head(sequence=number, hash=entry.hash or "")
        return True

    def fail(self, number: int, reason: str) -> bool:
        self.broken_at, self.broken = number, f"entry {number} {reason}"
        return False

    def _pruned_anchors(self, first: int) -> list[int]:
        return sorted(number for number, noted in self.anchors.items() if self._is_unknown(number, noted, first))

    def _is_unknown(self, number: int, noted: str, first: int) -> bool:
        return number < first and self._pruned.get(number) != noted

    def verdict(self, *, waiting: int) -> ChainVerdict:
        """After the last entry: also whether its beginning, and entries that were noted elsewhere, are there."""
        first = self.first or 0
        if first == 0:
            self.fail(1, "is missing: the ledger is empty")
        elif first > 1 and self._pruned.get(first - 1) != self._came_after:
            # An entry that is missing at the beginning comes before any other trouble.
            self.fail(1, f"is missing, up to entry {first - 1}, and no entry records that they were pruned")
        elif first == 1 and self._came_after != FIRST:
            self.fail(1, "was changed")
        elif self.broken is None and (gone := self._pruned_anchors(first)):
            self.fail(gone[0], "was noted and is pruned, so that it cannot be compared: give a newer head")
        elif self.broken is None and max(self.anchors, default=0) > self.head.sequence:
            self.fail(self.head.sequence + 1, f"is missing: the newest is entry {self.head.sequence}")
        return ChainVerdict(
            first=first,
            head=self.head,
            entries=self.count,
            waiting=waiting,
            pruned=max(0, first - 1),
            broken_at=self.broken_at,
            broken=self.broken,
        )
