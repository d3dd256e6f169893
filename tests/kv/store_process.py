"""A store in a process of its own, so that the process can be killed under it.

Pickled calls come in on standard input, pickled answers go out on standard output.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from datetime import datetime
from typing import Any

import lapse.kv
from lapse.clock import ManualClock


class ProcessStore:
    """The parent's end."""

    def __init__(self, url: str, now: datetime) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.call("open", url, now)

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump((name, args, options), self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._end()

    def close(self) -> None:
        self.call("close")
        self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def serve() -> None:
    store: lapse.kv.Store | None = None
    clock = ManualClock()
    while True:
        name, args, options = pickle.load(sys.stdin.buffer)
        try:
            if name == "open":
                url, now = args
                clock.set(now)
                store = lapse.kv.open(url, clock=clock, default_ttl="1 day")
                answer = None
            elif name == "set_time":
                clock.set(*args)
                answer = None
            else:
                answer = getattr(store, name)(*args, **options)
                answer = list(answer) if name == "scan" else answer
        except Exception as error:
            answer = RuntimeError(repr(error))
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
