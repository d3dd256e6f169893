"""URLs of archives: read, refused, and shown without what is secret."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lapse.archive
from lapse.archive.address import is_archive_url, parse
from lapse.errors import MissingExtra, UsageError

S3 = "s3://KEYID:s3cr%2Ft@bucket/a/b?endpoint_override=127.0.0.1:9000&region=eu&scheme=http"


def test_what_a_url_means() -> None:
    assert (parse("file:///var/archive%20of/x").path, parse("file://localhost/x/").path) == ("/var/archive of/x", "/x")
    found = parse(S3)
    assert found.path == "bucket/a/b"
    assert found.options == {
        "access_key": "KEYID",
        "secret_key": "s3cr/t",
        "endpoint_override": "127.0.0.1:9000",
        "region": "eu",
        "scheme": "http",
    }
    assert parse("gs://bucket").path == "bucket"
    assert parse("az://box/p?account_name=me", account_key="k").options == {"account_name": "me", "account_key": "k"}
    assert parse("s3://b/p", anonymous=True, connect_timeout=2.5).options == {
        "anonymous": "true",
        "connect_timeout": "2.5",
    }


def test_secrets_are_not_shown() -> None:
    found = parse(S3 + "&session_token=t0ken")
    shown = f"{found} {found!r} {found.scrub('bad s3cr/t of KEYID with t0ken')}"
    assert not any(secret in shown for secret in ("s3cr", "KEYID", "t0ken"))
    assert str(found) == "s3://bucket/a/b?region=eu&endpoint_override=127.0.0.1:9000"
    assert str(lapse.archive.open(S3)) == str(found)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("ftp://host/x", "ftp"),
        ("/var/archive", "cannot be at"),
        ("file://host/x", "absolute path"),
        ("file:///", "absolute path"),
        ("file:relative", "absolute path"),
        ("file:///a/../b", r"\.\."),
        ("file:///a?region=x", "no option 'region'"),
        ("s3:///prefix", "name of a bucket"),
        ("s3://127.0.0.1:9000/bucket", "name of a bucket"),
        ("s3://bucket/../x", r"\.\."),
        ("s3://bucket/p?regoin=eu", "no option 'regoin'"),
        ("s3://bucket/p?region=eu&region=us", "twice"),
        ("s3://bucket/p?region", "cannot be read"),
        ("s3://bucket/p?scheme=ftp", "http or https"),
        ("s3://bucket/p?anonymous=yes", "true or false"),
        ("s3://bucket/p?connect_timeout=0", "seconds"),
        ("s3://bucket/p?connect_timeout=soon", "seconds"),
        ("s3://KEY@bucket/p", "user name"),
        ("gs://KEY:S3CR3T@bucket/p", "user name"),
        ("//KEY:S3CR3T@bucket/p", "cannot be at"),
        ("s3://KEY:S3CR3T@/p", "name of a bucket"),
        ("az://box/p", "account_name"),
        ("s3://bucket/p#x", "fragment"),
        ("s3://[bucket/p", "not a URL"),
    ],
)
def test_what_cannot_be_meant_is_refused(url: str, named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        parse(url)
    assert "S3CR3T" not in str(caught.value)


def test_which_destinations_are_files() -> None:
    assert [is_archive_url(url) for url in ("file:///x", "s3://b", "table:x", "table://x", "s3:b")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_without_the_extra_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[archive\]'"):
        lapse.archive.open("file:///tmp")


def test_importing_the_package_does_not_load_pyarrow() -> None:
    code = "import sys, lapse.archive; lapse.archive.is_archive_url('x'); print('pyarrow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
