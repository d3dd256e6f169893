"""Finding a bucket by the environment, and signing requests to it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lapse.kv.slatedb.s3 import Bucket, Credentials, bucket_from, sign

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


def test_a_listing_is_signed_as_in_amazons_example() -> None:
    credentials = Credentials(key_id="AKIAIOSFODNN7EXAMPLE", secret="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    url = "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J"
    headers = sign(url, "us-east-1", credentials, at=datetime(2013, 5, 24, tzinfo=UTC))
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
        "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    )


def test_a_session_token_is_signed_and_sent() -> None:
    credentials = Credentials(key_id="id", secret="secret", token="a token")
    headers = sign("https://h/b", "r", credentials, at=datetime(2030, 1, 1, tzinfo=UTC))
    assert headers["x-amz-security-token"] == "a token"
    assert "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token," in headers["authorization"]


@pytest.mark.parametrize(
    ("environment", "root", "region"),
    [
        ({}, "https://s3.us-east-1.amazonaws.com/b", "us-east-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-3"}, "https://s3.eu-west-3.amazonaws.com/b", "eu-west-3"),
        ({"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}, "https://b.s3.us-east-1.amazonaws.com", "us-east-1"),
        ({"AWS_ENDPOINT": "https://h:9000/"}, "https://h:9000/b", "us-east-1"),
        ({"AWS_ENDPOINT_URL": "http://h", "AWS_ALLOW_HTTP": "1"}, "http://h/b", "us-east-1"),
        ({"AWS_ENDPOINT_URL_S3": "https://s", "AWS_ENDPOINT": "https://h"}, "https://s/b", "us-east-1"),
        ({"AWS_ENDPOINT": "https://b.h", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "1"}, "https://b.h", "us-east-1"),
    ],
)
def test_where_a_bucket_is(environment: dict[str, str], root: str, region: str) -> None:
    credentials = Credentials(key_id="id", secret="secret")
    assert bucket_from(KEYS | environment, "b") == Bucket(root=root, region=region, credentials=credentials)


def test_the_token_and_unsigned_requests() -> None:
    found = bucket_from(KEYS | {"AWS_SESSION_TOKEN": "t"}, "b")
    assert found is not None and found.credentials == Credentials(key_id="id", secret="secret", token="t")
    public = bucket_from({"AWS_SKIP_SIGNATURE": "true"}, "b")
    assert public is not None and public.credentials is None


@pytest.mark.parametrize(
    "environment", [{}, {"AWS_ACCESS_KEY_ID": "id"}, KEYS | {"AWS_ENDPOINT": "http://plain-and-not-allowed"}]
)
def test_a_bucket_that_cannot_be_reached_so(environment: dict[str, str]) -> None:
    assert bucket_from(environment, "b") is None
