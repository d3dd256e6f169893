"""`lapse.archive.open`: from a URL to an archive."""

from __future__ import annotations

from lapse.archive.address import parse
from lapse.archive.archive import Archive
from lapse.archive.files import Files
from lapse.archive.writer import TARGET_BYTES


def open(url: str, *, target_bytes: int = TARGET_BYTES, **options: str | float) -> Archive:
    """The archive at `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.

    `options` are those of the URL's query (`region`, `endpoint_override`, `scheme`, `access_key`, `secret_key`, …);
    without credentials the store's own ways to find them are used. A file is ended once it has `target_bytes`.
    """
    return Archive(Files(parse(url, **options)), target_bytes=target_bytes)
