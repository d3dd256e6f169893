"""What people are told about a database: events, and the notices that say so."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class EventKind(StrEnum):
    TABLE_BLOCKED = "table_blocked"
    TABLE_LATE = "table_late"
    FIRST_RUN_HELD = "first_run_held"
    JOB_FAILED = "job_failed"
    CLOCK_ODD = "clock_odd"
    HOLD = "hold"

    @property
    def words(self) -> tuple[str, str]:
        """What is said when it begins, and when it is over."""
        return _WORDS[self]


_WORDS = {
    EventKind.TABLE_BLOCKED: ("is blocked", "is no longer blocked"),
    EventKind.TABLE_LATE: ("is late", "is on time again"),
    EventKind.FIRST_RUN_HELD: ("waits for confirmation of its first run", "waits for no confirmation any more"),
    EventKind.JOB_FAILED: ("has a job that failed", "has no failed job any more"),
    EventKind.CLOCK_ODD: ("has a clock that is not trusted", "has a clock that is trusted again"),
    EventKind.HOLD: ("has a new hold", "has a hold less"),
}


class NoticeState(StrEnum):
    BEGAN = "began"
    CLEARED = "cleared"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that lasts. A `table` of None is the whole database; `cleared_at` is None while it lasts. The `code` of
    a hold is its number."""

    id: str
    kind: EventKind
    policy_id: int | None
    table: str | None
    code: str | None
    reason: str
    began_at: datetime
    cleared_at: datetime | None = None

    @property
    def key(self) -> str:
        """Equal for two that must not last at the same time."""
        if self.kind is EventKind.HOLD:
            return f"{self.kind}:{self.code}"
        return f"{self.kind}:{'' if self.policy_id is None else self.policy_id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """One message to one receiver. Its `id` is the same however often it is sent."""

    event: Event
    state: NoticeState
    receiver: str
    attempts: int

    @property
    def id(self) -> str:
        return f"{self.event.id}.{self.state}"
