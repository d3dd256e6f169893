"""Who is told about events: a webhook and a command, both configured where the worker runs, never in the database.

A URL or a command in a table would be one that every role with write access to the catalog could change: the worker
would then reach addresses, or run programs, for that role.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shlex
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit

from lapse._version import __version__
from lapse.errors import LapseError, UsageError
from lapse.model.notice import Notice, NoticeState
from lapse.model.secret import mask

URL_ENVIRONMENT = "LAPSE_NOTIFY_URL"
COMMAND_ENVIRONMENT = "LAPSE_NOTIFY_COMMAND"
SECRET_ENVIRONMENT = "LAPSE_NOTIFY_SECRET"
WEBHOOK_SECONDS = 5.0
COMMAND_SECONDS = 30.0
SIGNATURE = "Lapse-Signature"
NOTICE_ID = "Lapse-Notice-Id"


class NotDelivered(LapseError):
    """`away` says that the receiver could not be reached at all, so that the next notice need not be tried now."""

    def __init__(self, message: str, *, away: bool) -> None:
        super().__init__(message)
        self.away = away


class Receiver(ABC):
    name: str
    """The same in every worker: a notice that one could not deliver is delivered by another."""

    @abstractmethod
    def deliver(self, notice: Notice, database: str, is_stopping: Callable[[], bool]) -> None:
        """Raises NotDelivered."""


def read_receivers(environment: Mapping[str, str], url: str | None, command: str | None) -> tuple[Receiver, ...]:
    """From options, or else from the environment. Raises UsageError for what cannot work."""
    url = url or environment.get(URL_ENVIRONMENT)
    command = command or environment.get(COMMAND_ENVIRONMENT)
    secret = environment.get(SECRET_ENVIRONMENT)
    if secret and not url:
        raise UsageError(f"${SECRET_ENVIRONMENT} signs webhooks, and there is none", hint=f"set {URL_ENVIRONMENT}")
    found: list[Receiver] = []
    if url:
        found.append(Webhook(url, secret or None))
    if command:
        found.append(CommandReceiver(command))
    return tuple(found)


def message(notice: Notice, database: str) -> dict[str, Any]:
    """What receivers are told. `text` is what Slack and those that understand its format show."""
    event = notice.event
    is_over = notice.state is NoticeState.CLEARED
    fields = {
        "id": notice.id,
        "event": event.id,
        "kind": str(event.kind),
        "state": str(notice.state),
        "database": database,
        "table": event.table,
        "code": event.code,
        "reason": mask(event.reason),
        "began_at": event.began_at.isoformat(),
        "cleared_at": event.cleared_at.isoformat() if is_over and event.cleared_at is not None else None,
    }
    return {"text": _escaped(_sentence(notice, database)), **fields}


def _sentence(notice: Notice, database: str) -> str:
    event = notice.event
    what = f"database {database}" if event.table is None else f"table {event.table} of {database}"
    began, over = event.kind.words
    if notice.state is NoticeState.BEGAN:
        return f"Lapse: {what} {began}: {mask(event.reason)}"
    return f"Lapse: {what} {over}"


def _escaped(text: str) -> str:
    """Slack reads `<!channel>` in a table's name as a call to everyone."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def sign(secret: str, body: bytes, moment: int) -> str:
    """`t=<unix seconds>,v1=<HMAC-SHA256 of "<t>.<body>" in hex>`."""
    digest = hmac.new(secret.encode(), str(moment).encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={digest}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A receiver must not be able to send the worker somewhere else."""

    def redirect_request(self, *args: Any, **keywords: Any) -> None:
        return None


class Webhook(Receiver):
    name = "webhook"

    def __init__(self, url: str, secret: str | None) -> None:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host or any(ord(character) <= 32 for character in url):
            # Without the URL: it may be a secret.
            raise UsageError(
                "the URL for notifications is not one of http or https", hint="such as https://example.com/hook"
            )
        if parts.username is not None or parts.password is not None:
            raise UsageError(
                "the URL for notifications must have no user name and no password",
                hint=f"sign the notifications with ${SECRET_ENVIRONMENT}",
            )
        self._url = url
        self._secret = secret
        self._opener = urllib.request.build_opener(_NoRedirect())

    def deliver(self, notice: Notice, database: str, is_stopping: Callable[[], bool]) -> None:
        body = json.dumps(message(notice, database), ensure_ascii=False).encode()
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": f"lapse/{__version__}",
            NOTICE_ID: notice.id,
        }
        if self._secret is not None:
            headers[SIGNATURE] = sign(self._secret, body, int(time()))
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        try:
            with self._opener.open(request, timeout=WEBHOOK_SECONDS):
                return
        except urllib.error.HTTPError as error:
            error.close()
            raise NotDelivered(f"the receiver answered with status {error.code}", away=error.code >= 500) from None
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise NotDelivered(
                f"the receiver cannot be reached: {type(reason).__name__}: {reason}", away=True
            ) from None


class CommandReceiver(Receiver):
    """Run without a shell, with the notice as JSON on its standard input. Exit code 0 says that it was delivered."""

    name = "command"

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"the command for notifications cannot be read: {error}") from None
        if not self._words or shutil.which(self._words[0]) is None:
            raise UsageError(
                "the command for notifications is not an executable program",
                hint="it is run without a shell: give a program and its arguments",
            )

    def deliver(self, notice: Notice, database: str, is_stopping: Callable[[], bool]) -> None:
        body = json.dumps(message(notice, database), ensure_ascii=False) + "\n"
        try:
            process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith("LAPSE_")},
                start_new_session=True,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise NotDelivered(f"the command cannot be started: {error.strerror}", away=True) from None
        code = _wait(process, body, is_stopping)
        if code is None:
            raise NotDelivered(f"the command did not end within {COMMAND_SECONDS:.0f} s", away=True)
        if code:
            raise NotDelivered(f"the command ended with exit code {code}", away=False)


def _wait(process: subprocess.Popen[str], body: str, is_stopping: Callable[[], bool]) -> int | None:
    """The exit code; None where the command, with all that it has started, was killed."""
    until = monotonic() + COMMAND_SECONDS
    text: str | None = body
    while True:
        try:
            process.communicate(text, timeout=0.2)
            return process.returncode
        except subprocess.TimeoutExpired:
            # `communicate` goes on with what it was given at first.
            text = None
        if monotonic() > until or is_stopping():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None
