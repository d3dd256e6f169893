"""A real HTTP server that notifications are sent to: it can refuse, go away and come back at the same address."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import monotonic, sleep
from typing import Any

WAIT_S = 30.0


class Receiver:
    def __init__(self) -> None:
        self.accepted: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.refused = 0
        self.status = 200
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/hook/secret-path"

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"receiver": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def wait_for(self, count: int) -> None:
        until = monotonic() + WAIT_S
        while len(self.accepted) < count:
            assert monotonic() < until, f"{count} notices were expected: {self.accepted}"
            sleep(0.02)

    def told(self) -> list[tuple[str, str]]:
        return [(each["kind"], each["state"]) for each in self.accepted]


class _Handler(BaseHTTPRequestHandler):
    receiver: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.receiver.status == 200:
            self.receiver.accepted.append(json.loads(body))
            self.receiver.headers.append(dict(self.headers))
            self.receiver.bodies.append(body)
        else:
            self.receiver.refused += 1
        self.send_response(self.receiver.status)
        self.send_header("Location", self.receiver.url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """Where a redirect would lead."""
        self.receiver.accepted.append({"kind": "followed", "state": "redirect"})
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass
