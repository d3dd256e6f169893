"""Locks of other sessions that a worker waits for: told once when one has lasted for a while, once when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from time import monotonic

from lapse.clock import Clock, SystemClock
from lapse.model.table import TableName
from lapse.runner.events import Listener, LockWait

TOLD_AFTER_SECONDS = 1.0
"""Shorter waits are part of the work."""


@dataclass(kw_only=True, slots=True)
class _Wait:
    event: LockWait
    started: float
    told: bool = False


class LockWatch:
    """Shared by the threads of a worker. A `table` of None stands for the whole database."""

    def __init__(self, listener: Listener, clock: Clock | None) -> None:
        self._listener = listener
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._waits: dict[TableName | None, _Wait] = {}

    def met(self, table: TableName | None, *, waited: float = 0.0) -> LockWait:
        """A lock was not to be had, after `waited` seconds for it."""
        with self._lock:
            wait = self._waits.get(table)
            if wait is None:
                event = LockWait(table=table, since=self._clock.now() - timedelta(seconds=waited))
                wait = self._waits[table] = _Wait(event=event, started=monotonic() - waited)
            return wait.event

    def is_long(self, table: TableName | None) -> bool:
        """Has the wait lasted long enough to be told?"""
        with self._lock:
            wait = self._waits.get(table)
            return wait is not None and monotonic() - wait.started >= TOLD_AFTER_SECONDS

    def tell(self, table: TableName | None) -> None:
        """Once for each wait that is long, whichever thread comes first."""
        with self._lock:
            wait = self._waits.get(table)
            if wait is None or wait.told or monotonic() - wait.started < TOLD_AFTER_SECONDS:
                return
            wait.told = True
        self._listener.locked(wait.event)

    def over(self, table: TableName | None) -> None:
        """The lock was to be had; nothing is said where no wait was told."""
        if table not in self._waits:
            return
        with self._lock:
            wait = self._waits.pop(table, None)
        if wait is not None and wait.told:
            self._listener.unlocked(wait.event, monotonic() - wait.started)
