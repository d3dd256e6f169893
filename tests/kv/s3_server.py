"""The part of S3 that SlateDB uses, over HTTP and in memory: signed requests, conditional puts, ranges, listings in
pages, bulk deletes."""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

BUCKET = "bucket"
KEY_ID = "id"
SECRET = "secret"
PAGE_OBJECTS = 5

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<id>[^/]+)/(?P<scope>[^,]+), ?"
    r"SignedHeaders=(?P<names>[^,]+), ?Signature=(?P<is>.+)"
)


class Bucket:
    """Objects by key; `lock` makes a conditional put one step. Those in `undeletable` stay, as under a retention rule.
    While `answers` is clear, no read of an object is answered."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.undeletable: set[str] = set()
        self.answers = threading.Event()
        self.answers.set()
        self.forgeries = 0
        self.modified: dict[str, str] = {}
        self.lock = threading.Lock()
        self.endpoint = ""

    def contains(self, payload: bytes) -> bool:
        with self.lock:
            return any(payload in body for body in self.objects.values())

    def delete(self, key: str) -> None:
        if key not in self.undeletable:
            self.objects.pop(key, None)


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    @property
    def _query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def parse_request(self) -> bool:
        """Refuses what is not signed as it should be."""
        if not super().parse_request():
            return False
        if not self._is_signed():
            self.bucket.forgeries += 1
            self._answer(403, _error("SignatureDoesNotMatch"))
            return False
        return True

    def _is_signed(self) -> bool:
        found = _AUTHORIZATION.fullmatch(self.headers.get("Authorization", ""))
        if found is None or found["id"] != KEY_ID:
            return False
        parts, content = urlsplit(self.path), self.headers["x-amz-content-sha256"]
        pairs = sorted(parse_qsl(parts.query, keep_blank_values=True))
        query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)
        lines = [f"{name}:{self.headers[name].strip()}" for name in found["names"].split(";")]
        request = "\n".join([self.command, parts.path, query, *lines, "", found["names"], content])
        digest = hashlib.sha256(request.encode()).hexdigest()
        key = f"AWS4{SECRET}".encode()
        for part in found["scope"].split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], found["scope"], digest])
        return hmac.digest(key, text.encode(), "sha256").hex() == found["is"]

    def do_PUT(self) -> None:
        body = self._body()
        with self.bucket.lock:
            current = self.bucket.objects.get(self._key)
            expected = self.headers.get("If-Match")
            is_taken = self.headers.get("If-None-Match") == "*" and current is not None
            if is_taken or (expected is not None and (current is None or _etag(current) != expected)):
                self._answer(412, _error("PreconditionFailed"))
                return
            self.bucket.objects[self._key] = body
            self.bucket.modified[self._key] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        self._answer(200, etag=_etag(body))

    def do_GET(self) -> None:
        if not self._key:
            self._answer(200, self._listing().encode())
            return
        self.bucket.answers.wait()
        body = self.bucket.objects.get(self._key)
        if body is None:
            self._answer(404, _error("NoSuchKey"))
        elif self.headers.get("If-None-Match") == _etag(body):
            self._answer(304, etag=_etag(body))
        else:
            self._answer_range(body)

    def do_HEAD(self) -> None:
        body = self.bucket.objects.get(self._key)
        self._answer(404) if body is None else self._answer(200, body, etag=_etag(body))

    def do_DELETE(self) -> None:
        self.bucket.delete(self._key)
        self._answer(204)

    def do_POST(self) -> None:
        if "delete" not in self._query:
            self._answer(501, _error("NotImplemented"))
            return
        keys = [each.text or "" for each in ElementTree.fromstring(self._body()).iter() if each.tag.endswith("Key")]
        for key in keys:
            self.bucket.delete(key)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _listing(self) -> str:
        prefix, after, token = (
            self._query.get(name, [""])[0] for name in ("prefix", "start-after", "continuation-token")
        )
        with self.bucket.lock:
            items = sorted(self.bucket.objects.items())
        found = [(key, body) for key, body in items if key.startswith(prefix) and key > max(after, token)]
        page, more = found[:PAGE_OBJECTS], len(found) > PAGE_OBJECTS
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{self.bucket.modified[key]}</LastModified>"
            f"<ETag>{escape(_etag(body))}</ETag><Size>{len(body)}</Size></Contents>"
            for key, body in page
        )
        next_page = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if more else ""
        return (
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{next_page}{contents}</ListBucketResult>"
        )

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer_range(self, body: bytes) -> None:
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        if not wanted:
            self._answer(200, body, etag=_etag(body))
            return
        first, _, last = wanted.partition("-")
        start = int(first) if first else len(body) - int(last)
        end = min(int(last) + 1, len(body)) if first and last else len(body)
        self._answer(206, body[start:end], etag=_etag(body), span=f"bytes {start}-{end - 1}/{len(body)}")

    def _answer(self, status: int, body: bytes = b"", *, etag: str | None = None, span: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Last-Modified", formatdate(usegmt=True))
        for name, value in (("ETag", etag), ("Content-Range", span)):
            if value is not None:
                self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(body)


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code></Error>".encode()


@contextmanager
def serving() -> Iterator[Bucket]:
    bucket = Bucket()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"bucket": bucket}))
    server.daemon_threads = True
    bucket.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        bucket.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()
