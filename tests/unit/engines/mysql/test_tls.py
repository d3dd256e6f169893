"""What the options of a URL make of the connection, without a server."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from sqlalchemy import make_url

from lapse.engines.mysql import tls
from lapse.engines.mysql.session import read_url
from lapse.errors import UnsupportedUrl


def _arguments(query: str) -> dict[str, Any]:
    return tls.arguments(make_url(f"mysql://ada@db/shop?{query}"))


@pytest.mark.parametrize("query", ["", "ssl_mode=PREFERRED", "sslmode=prefer", "sslmode=allow", "ssl_disabled=false"])
def test_nothing_asked_for_is_left_to_the_driver(query: str) -> None:
    assert _arguments(query) == {}


@pytest.mark.parametrize("query", ["ssl_mode=disabled", "sslmode=disable", "ssl=0", "ssl_disabled=TRUE"])
def test_no_encryption(query: str) -> None:
    assert _arguments(query) == {"ssl_disabled": True}


@pytest.mark.parametrize(
    ("query", "verify", "name"),
    [
        ("ssl=true", ssl.CERT_NONE, False),
        ("ssl_mode=REQUIRED", ssl.CERT_NONE, False),
        ("sslmode=require", ssl.CERT_NONE, False),
        ("ssl_verify_cert=true", ssl.CERT_REQUIRED, False),
        ("ssl_mode=VERIFY_CA", ssl.CERT_REQUIRED, False),
        ("sslmode=verify-ca", ssl.CERT_REQUIRED, False),
        ("ssl-mode=verify_identity", ssl.CERT_REQUIRED, True),
        ("sslmode=verify-full", ssl.CERT_REQUIRED, True),
        ("ssl_verify_identity=true&ssl_verify_cert=true", ssl.CERT_REQUIRED, True),
    ],
)
def test_how_much_is_checked(query: str, verify: ssl.VerifyMode, name: bool) -> None:
    context = _arguments(query)["ssl"]
    assert (context.verify_mode, context.check_hostname) == (verify, name)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("ssl_mode=maybe", "must be one of"),
        ("ssl=2", "must be true or false"),
        ("ssl_ca=/no/file", "/no/file"),
        ("sslcrl=x", "unknown option sslcrl"),
    ],
)
def test_what_cannot_be_meant(query: str, words: str) -> None:
    with pytest.raises(UnsupportedUrl, match=words):
        _arguments(query)


def test_a_password_of_a_key_is_not_repeated() -> None:
    with pytest.raises(UnsupportedUrl) as caught:
        _arguments("ssl_cert=/no/file&ssl_key_password=s3cret")
    assert "s3cret" not in str(caught.value)


def test_the_driver_is_told_once() -> None:
    options = read_url(make_url("mysql://ada@db/shop?ssl_mode=DISABLED&connect_timeout=5&lapse_replicas=db2"))
    assert dict(options.url.query) == {"connect_timeout": "5"}
    assert options.arguments == {"ssl_disabled": True, "charset": "utf8mb4"}
    assert [str(each.host) for each in options.replicas] == ["db2"]


def test_an_option_that_the_driver_does_not_know() -> None:
    with pytest.raises(UnsupportedUrl, match="unknown option tiemout"):
        read_url(make_url("mysql://ada@db/shop?tiemout=5"))
