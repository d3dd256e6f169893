"""Passwords that are not sent in the clear, certificates, and what a URL may say about both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from lapse.app import Lapse
from lapse.errors import DatabaseUnavailable, UnsupportedUrl
from tests.backends.mariadb import MariadbServer
from tests.backends.mysql import PACKAGE, MysqlServer

PASSWORD = "c0rrect-horse"


@pytest.fixture(scope="module")
def encrypted() -> Iterator[MariadbServer]:
    reason = PACKAGE.why_not()
    if reason is not None and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)
    started = MysqlServer("--tls-version=TLSv1.2,TLSv1.3")
    started.execute(
        "CREATE DATABASE shop",
        f"CREATE USER ada IDENTIFIED WITH caching_sha2_password BY '{PASSWORD}'",
        "GRANT ALL ON shop.* TO ada",
    )
    yield started
    started.close()


def _url(server: MariadbServer, options: str = "", password: str = PASSWORD, host: str = "127.0.0.1") -> str:
    return f"mysql://ada:{password}@{host}:{server.port}/shop{options}"


def _cipher(url: str) -> str:
    """Empty where the connection is not encrypted."""
    with Lapse(url) as db:
        return str(db.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'").rows[0][1])


@pytest.fixture
def forgotten(encrypted: MariadbServer) -> MariadbServer:
    """The server has no password in its cache: it has to be sent, encrypted one way or the other."""
    encrypted.execute("FLUSH PRIVILEGES")
    return encrypted


def test_a_password_without_encryption_is_sent_with_the_servers_public_key(forgotten: MariadbServer) -> None:
    pytest.importorskip("cryptography")
    assert _cipher(_url(forgotten, "?ssl_mode=DISABLED")) == ""


def test_a_missing_package_is_an_error_with_a_hint(forgotten: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymysql._auth, "_have_cryptography", False)
    with pytest.raises(UnsupportedUrl, match="cryptography") as caught:
        _cipher(_url(forgotten, "?ssl_mode=DISABLED"))
    assert "ssl_mode=REQUIRED" in str(caught.value.hint)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "?ssl=true",
        "?ssl_disabled=false",
        "?ssl_mode=PREFERRED",
        "?ssl_mode=required",
        "?sslmode=require",
        "?ssl_ca={ca}&ssl_mode=VERIFY_CA",
        "?sslmode=verify-ca&sslrootcert={ca}",
        "?ssl_ca={ca}&ssl_check_hostname=false",
        "?ssl_ca={ca}&ssl_cert={folder}/client-cert.pem&ssl_key={folder}/client-key.pem&ssl_mode=verify-ca",
    ],
)
def test_an_encrypted_connection(forgotten: MariadbServer, options: str) -> None:
    data = forgotten.folder / "data"
    assert _cipher(_url(forgotten, options.format(ca=data / "ca.pem", folder=data))) != ""


@pytest.mark.parametrize("options", ["?ssl=false", "?ssl_disabled=true", "?sslmode=disable", "?ssl-mode=DISABLED"])
def test_no_encryption(encrypted: MariadbServer, options: str) -> None:
    _cipher(_url(encrypted))
    assert _cipher(_url(encrypted, options)) == ""


def test_a_certificate_of_someone_else_is_refused(encrypted: MariadbServer) -> None:
    """The one that the server has made for itself is not for this host, and no authority that the system knows."""
    ca = encrypted.folder / "data" / "ca.pem"
    for options in (f"?ssl_ca={ca}&ssl_mode=VERIFY_IDENTITY", f"?ssl_ca={ca}", "?ssl_mode=VERIFY_CA"):
        with pytest.raises(DatabaseUnavailable, match="certificate"):
            _cipher(_url(encrypted, options))


def test_a_server_that_cannot_encrypt(server: MariadbServer) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS plain_shop")
    with pytest.raises(DatabaseUnavailable) as caught:
        _cipher(f"{server.url}/plain_shop?ssl_mode=REQUIRED")
    assert "ssl_mode" in str(caught.value.hint)


def test_a_wrong_password_is_an_error_without_it(encrypted: MariadbServer) -> None:
    with pytest.raises(DatabaseUnavailable, match="cannot log in") as caught:
        _cipher(_url(encrypted, password="wr0ng"))
    assert "wr0ng" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("?ssl_mode=SOMETIMES", "must be one of DISABLED, PREFERRED, REQUIRED"),
        ("?ssl=perhaps", "must be true or false"),
        ("?ssl_cafile=x", "unknown option ssl_cafile"),
        ("?ssl_ca=/no/such/file.pem", "/no/such/file.pem"),
        ("?tiemout=5", "unknown option tiemout"),
    ],
)
def test_what_a_url_says_wrong(options: str, words: str) -> None:
    with pytest.raises(UnsupportedUrl, match=words):
        Lapse(f"mysql://ada@127.0.0.1:1/shop{options}")


def test_a_file_that_is_no_certificate(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("hello")
    with pytest.raises(UnsupportedUrl, match="ssl_ca"):
        Lapse(f"mysql://ada@127.0.0.1:1/shop?ssl_ca={tmp_path / 'ca.pem'}")
