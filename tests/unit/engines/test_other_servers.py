"""Servers that speak a protocol Lapse knows and have TTL of their own: refused from their greeting.

None of them can be started here, so a few bytes of their protocol stand for them: what a client sees before it says
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

MYSQL_CAPABILITIES = 0x0200 | 0x8000 | 0x00080000
"""PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH."""


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


def _tidb(client: socket.socket) -> None:
    greeting = (
        b"\x0a8.0.11-TiDB-v8.5.0\0"
        + struct.pack("<i", 1)
        + b"12345678\0"
        + struct.pack("<HBHH", MYSQL_CAPABILITIES & 0xFFFF, 45, 2, MYSQL_CAPABILITIES >> 16)
        + bytes([21])
        + bytes(10)
        + b"123456789012\0"
        + b"mysql_native_password\0"
    )
    client.sendall(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
    # The driver logs in, then names its character set.
    while header := client.recv(4):
        client.recv(int.from_bytes(header[:3], "little"))
        client.sendall(bytes([7, 0, 0, header[3] + 1]) + b"\0\0\0\x02\0\0\0")


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
        (_tidb, "mysql://u@127.0.0.1:{port}/db?ssl_mode=DISABLED", "TiDB", "--to tidb"),
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
