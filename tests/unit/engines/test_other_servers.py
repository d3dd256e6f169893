"""CockroachDB speaks PostgreSQL's protocol and has TTL of its own: refused from its greeting.

It cannot be started here, so a few bytes of their protocol stand for them: what a client sees before it says
anything.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from lapse.app import Lapse
from lapse.errors import UnsupportedUrl


def _postgres_message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _cockroach(client: socket.socket) -> None:
    size, code = struct.unpack("!ii", client.recv(8))
    while code in (80877103, 80877104):
        # It asks for encryption first.
        client.sendall(b"N")
        size, code = struct.unpack("!ii", client.recv(8))
    client.recv(size - 8)
    status = {"server_version": "13.0.0", "client_encoding": "UTF8", "crdb_version": "CockroachDB CCL v24.3.1"}
    said = b"".join(_postgres_message(b"S", f"{name}\0{value}\0".encode()) for name, value in status.items())
    client.sendall(
        _postgres_message(b"R", struct.pack("!i", 0))
        + said
        + _postgres_message(b"K", struct.pack("!ii", 1, 2))
        + _postgres_message(b"Z", b"I")
    )


@contextmanager
def _serving(greet: object) -> Iterator[int]:
    """The port on which clients are greeted so."""
    assert callable(greet)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    with client, suppress(OSError, struct.error):
                        greet(client)
                        client.recv(1)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.mark.parametrize(
    ("greet", "url", "words", "hint"),
    [
        (_cockroach, "postgresql://u@127.0.0.1:{port}/db", "CockroachDB", "--to cockroach"),
    ],
)
def test_they_are_refused_with_what_to_do_instead(greet: object, url: str, words: str, hint: str) -> None:
    with _serving(greet) as port, Lapse(url.format(port=port)) as db:
        for statement in ("ALTER TABLE t SET (ttl_expire_after = '1 day')", "SELECT 1"):
            with pytest.raises(UnsupportedUrl, match=words) as caught:
                db.execute(statement)
            assert hint in str(caught.value.hint)
        with pytest.raises(UnsupportedUrl, match=words):
            db.run()
