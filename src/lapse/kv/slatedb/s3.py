"""Reading the objects of an S3 bucket, which SlateDB's Python binding has no way to do."""

from __future__ import annotations

import hashlib
import hmac
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException, HTTPResponse
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from lapse.kv.verify import BLOCK_BYTES

DEFAULT_REGION = "us-east-1"
TIMEOUT_S = 30.0
_ATTEMPTS = 3
_PAUSE_S = 0.2
_NO_BODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    key_id: str
    secret: str
    token: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """`root` is the bucket's URL. Without credentials requests are not signed."""

    root: str
    region: str
    credentials: Credentials | None

    def objects(self, prefix: str) -> list[S3Object]:
        """The objects that are not empty, under names that begin with `prefix`."""
        found: list[S3Object] = []
        token: str | None = None
        while True:
            query = {"list-type": "2", "prefix": prefix} | ({"continuation-token": token} if token else {})
            with self.get("", query) as response:
                page = ElementTree.fromstring(response.read())
            for item in page.iterfind("{*}Contents"):
                if item.findtext("{*}Size") != "0":
                    found.append(S3Object(bucket=self, name=item.findtext("{*}Key") or ""))
            token = page.findtext("{*}NextContinuationToken")
            if not token:
                return found

    def get(self, name: str, query: Mapping[str, str] | None = None) -> HTTPResponse:
        url = f"{self.root}/{_quote(name, safe='/')}"
        if query:
            url += "?" + "&".join(f"{_quote(key)}={_quote(query[key])}" for key in sorted(query))
        for attempt in range(_ATTEMPTS):
            try:
                return self._get_once(url)
            except HTTPError as error:
                error.close()
                if error.code == 404:
                    raise FileNotFoundError(name) from error
                if error.code < 500 or attempt + 1 == _ATTEMPTS:
                    raise
            time.sleep(_PAUSE_S)
        raise AssertionError("unreachable")

    def _get_once(self, url: str) -> HTTPResponse:
        headers = {} if self.credentials is None else sign(url, self.region, self.credentials, at=datetime.now(UTC))
        response: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S)
        return response


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Object:
    bucket: Bucket
    name: str

    def blocks(self) -> Iterator[bytes]:
        try:
            with self.bucket.get(self.name) as response:
                while block := response.read(BLOCK_BYTES):
                    yield block
        except HTTPException as error:
            raise OSError(f"{self.name} could not be read to its end") from error


def bucket_from(environment: Mapping[str, str], name: str) -> Bucket | None:
    """The bucket as SlateDB's own client finds it; None if its keys come from elsewhere than the environment."""

    def first(*names: str) -> str | None:
        return next((environment[each] for each in names if environment.get(each)), None)

    key_id, secret = first("AWS_ACCESS_KEY_ID"), first("AWS_SECRET_ACCESS_KEY")
    unsigned = _is_true(first("AWS_SKIP_SIGNATURE"))
    if not unsigned and (key_id is None or secret is None):
        return None
    region = first("AWS_REGION", "AWS_DEFAULT_REGION") or DEFAULT_REGION
    endpoint = first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_ENDPOINT_URL")
    hosted = _is_true(first("AWS_VIRTUAL_HOSTED_STYLE_REQUEST"))
    if endpoint is None:
        root = f"https://{name}.s3.{region}.amazonaws.com" if hosted else f"https://s3.{region}.amazonaws.com/{name}"
    else:
        root = endpoint.rstrip("/") if hosted else f"{endpoint.rstrip('/')}/{name}"
    if root.startswith("http://") and not _is_true(first("AWS_ALLOW_HTTP")):
        return None
    if unsigned or key_id is None or secret is None:
        return Bucket(root=root, region=region, credentials=None)
    token = first("AWS_SESSION_TOKEN", "AWS_TOKEN")
    return Bucket(root=root, region=region, credentials=Credentials(key_id=key_id, secret=secret, token=token))


def sign(url: str, region: str, credentials: Credentials, *, at: datetime) -> dict[str, str]:
    """The headers of a GET by AWS's Signature Version 4. `url` is quoted and its query sorted."""
    parts, stamp = urlsplit(url), at.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": parts.netloc, "x-amz-content-sha256": _NO_BODY, "x-amz-date": stamp}
    if credentials.token is not None:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    request = "\n".join(["GET", parts.path, parts.query, *lines, "", names, _NO_BODY])
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = b"AWS4" + credentials.secret.encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    signature = _hmac(key, text).hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _quote(text: str, safe: str = "") -> str:
    return quote(text, safe=f"{safe}-_.~")


def _is_true(text: str | None) -> bool:
    return (text or "").lower() in ("1", "true", "on", "yes", "y")
