"""The page that asks for the token, and the throttle on guesses."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from starlette.responses import HTMLResponse

GUESSES = 10
WINDOW_SECONDS = 60.0
MOST_ADDRESSES = 10_000
"""Beyond them the oldest is forgotten: the memory of a throttle must not grow with the number of attackers."""

LOGIN, LOGOUT = "/login", "/logout"
_PAGE = (Path(__file__).parent / "templates" / "login.html").read_text(encoding="utf-8")
_STYLE = _PAGE.partition("<style>")[2].partition("</style>")[0]
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
# Nothing else of the console is shown before the token: the page has its own style in it.
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


def page(problem: str | None = None, status: int = 401) -> HTMLResponse:
    said = "" if problem is None else f'<p class="problem" role="alert">{problem}</p>'
    headers = {"Content-Security-Policy": _POLICY, "Vary": "Accept"}
    return HTMLResponse(_PAGE.replace("<!-- problem -->", said), status, headers)


class Throttle:
    """At most so many wrong tokens from one address in a window of time."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._guesses: dict[str, deque[float]] = {}

    def failed(self, address: str) -> None:
        found = self._guesses.pop(address, deque(maxlen=GUESSES))
        found.append(self._clock())
        self._guesses[address] = found
        while len(self._guesses) > MOST_ADDRESSES:
            del self._guesses[next(iter(self._guesses))]

    def wait_seconds(self, address: str) -> float:
        """How long no guess from there is looked at; 0 where it may try."""
        found = self._guesses.get(address)
        if found is None or len(found) < GUESSES:
            return 0.0
        return max(0.0, found[0] + WINDOW_SECONDS - self._clock())
