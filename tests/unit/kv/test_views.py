"""What an open store knows of its scans and snapshots."""

from __future__ import annotations

import threading
from collections import deque

from lapse.kv.reads import Views


class OpenView:
    is_open = True

    def release(self) -> None: ...


def test_they_may_be_looked_at_while_other_threads_open_and_forget_some() -> None:
    views, done = Views(), threading.Event()

    def use() -> None:
        kept = deque[OpenView](maxlen=50)
        while not done.is_set():
            view = OpenView()
            views.add(view)
            kept.append(view)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3_000):
            assert all(view.is_open for view in views)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert list(views) == []
