"""The part of S3 that SlateDB uses, over HTTP and in memory: conditional puts, ranges, listings, bulk deletes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

BUCKET = "bucket"


class Bucket:
    """Objects by key; `lock` makes a conditional put one step."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified: dict[str, str] = {}
        self.lock = threading.Lock()
        self.endpoint = ""

    def contains(self, payload: bytes) -> bool:
        with self.lock:
            return any(payload in body for body in self.objects.values())


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
        self.bucket.objects.pop(self._key, None)
        self._answer(204)

    def do_POST(self) -> None:
        if "delete" not in self._query:
            self._answer(501, _error("NotImplemented"))
            return
        keys = [each.text or "" for each in ElementTree.fromstring(self._body()).iter() if each.tag.endswith("Key")]
        for key in keys:
            self.bucket.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _listing(self) -> str:
        prefix, after = (self._query.get(name, [""])[0] for name in ("prefix", "start-after"))
        with self.bucket.lock:
            found = sorted(item for item in self.bucket.objects.items() if item[0].startswith(prefix))
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{self.bucket.modified[key]}</LastModified>"
            f"<ETag>{escape(_etag(body))}</ETag><Size>{len(body)}</Size></Contents>"
            for key, body in found
            if key > after
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"

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
        server.shutdown()
        server.server_close()
        thread.join()
