"""Connections are encrypted where the server can, checked where the URL says so, and cheap to make either way."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.errors import DatabaseUnavailable
from tests.backends.mariadb import MariadbServer, why_no_server

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key, certificate = folder / f"{name}-key.pem", folder / f"{name}.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return key, certificate


@dataclass(frozen=True, kw_only=True, slots=True)
class Encrypting:
    url: str
    certificate: Path
    others: Path


@pytest.fixture(scope="module")
def encrypting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypting]:
    reason = why_no_server()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = _certificate(folder, "server")
    _, others = _certificate(folder, "another")
    server = MariadbServer(f"--ssl-cert={certificate}", f"--ssl-key={key}")
    server.execute("CREATE DATABASE app")
    yield Encrypting(url=f"{server.url}/app", certificate=certificate, others=others)
    server.close()


def _cipher(db: Lapse) -> str:
    return str(db.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'").rows[0][1])


def test_what_the_server_can_encrypt_is_encrypted(encrypting: Encrypting) -> None:
    with Lapse(encrypting.url) as db:
        assert _cipher(db)
        assert _cipher(db)


def test_certificates_are_checked_where_the_url_names_them(encrypting: Encrypting) -> None:
    with Lapse(encrypting.url) as db:
        assert _cipher(db)
    with Lapse(f"{encrypting.url}?ssl_ca={encrypting.certificate}") as db:
        assert _cipher(db)
    refused = pytest.raises(DatabaseUnavailable, match="certificate verify failed")
    with Lapse(f"{encrypting.url}?ssl_ca={encrypting.others}") as db, refused:
        db.policies()


def test_what_the_machine_trusts_is_read_once(encrypting: Encrypting) -> None:
    with Lapse(encrypting.url) as one, Lapse(encrypting.url) as other, ExitStack() as stack:
        opened = [stack.enter_context(closing(db.engine.user_connection())) for db in (one, one, other)]
        contexts = [each.connection.driver_connection.ctx for each in opened if each.connection.driver_connection]
        assert len(contexts) == 3
        assert len({id(context) for context in contexts}) == 1
