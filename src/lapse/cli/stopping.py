"""Ctrl-C and SIGTERM as a polite request to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from types import FrameType


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Inside it, the first signal calls `stop`; a second one ends the process as usual."""
    if current_thread() is not main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        restore()
        # In a thread: the one that was interrupted may hold a lock that `stop` needs.
        Thread(target=stop, name="lapse-stop", daemon=True).start()

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield
    finally:
        restore()
