"""The latest time a RocksDB store has seen, saved now and then."""

from __future__ import annotations

import threading
from typing import Any

from lapse.kv import format as stored
from lapse.kv.state import State

MARK_STEP_MS = 1_000
"""How far the clock moves before its mark is saved again: what a crash can forget of the time."""


class Marks:
    def __init__(self, state: State, meta_family: Any, lock: threading.RLock) -> None:
        self._state = state
        self._meta_family = meta_family
        self._lock = lock
        self.due_ms = state.mark_ms + MARK_STEP_MS

    def save(self, now_ms: int) -> None:
        if now_ms >= self.due_ms and not self._state.options.read_only:
            with self._lock:
                self.saved(now_ms)
                self._meta_family.put(stored.MARK_KEY, stored.pack_mark(self._state.mark_ms))

    def saved(self, now_ms: int) -> None:
        """It was, or is being, saved by other means."""
        self._state.mark_ms = max(now_ms, self._state.mark_ms)
        self.due_ms = self._state.mark_ms + MARK_STEP_MS
