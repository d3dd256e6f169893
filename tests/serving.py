"""A `lapse` process of its own: what it says, and what it answers over HTTP."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_S = 60.0
TOKEN = "a-token-for-tests-0123456789"


class Process:
    def __init__(self, *arguments: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lapse", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "LAPSE_URL"} | environment,
        )
        self.lines: list[str] = []
        self._coming: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr:
            for line in self._process.stderr:
                self._coming.put(line.strip())

    def wait_for(self, words: str) -> str:
        """The next message with these words."""
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s and (self._process.poll() is None or not self._coming.empty()):
            try:
                line = self._coming.get(timeout=0.2)
            except queue.Empty:
                continue
            self.lines.append(line)
            message = str(json.loads(line)["message"]) if line.startswith("{") else line
            if words in message:
                return message
        raise AssertionError(f"{words!r} was not said: {self.lines}")

    def address(self) -> str:
        return self.wait_for("metrics on http").rsplit(" ", 1)[1]

    def stop(self) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(WAIT_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[Process]:
    """Ends well when told to stop."""
    process = Process(*arguments, **environment)
    try:
        yield process
    finally:
        code = process.stop()
    assert code == 0, process.lines


def get(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
