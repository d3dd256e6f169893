"""Where archived rows go and come back from: Parquet files in a folder or an object store.

import lapse.archive

for batch in lapse.archive.open("s3://bucket/prefix?region=eu-central-1"):
    ...  # an Arrow record batch
"""

from __future__ import annotations

from lapse.archive.address import is_archive_url
from lapse.archive.allowed import open_allowed
from lapse.archive.archive import Archive, FileVerification
from lapse.archive.column import ArchivedColumn
from lapse.archive.header import File, Header
from lapse.archive.layout import number_of, pending_path
from lapse.archive.opening import open
from lapse.archive.reader import Verified
from lapse.archive.writer import PendingFile

__all__ = [
    "Archive",
    "ArchivedColumn",
    "File",
    "FileVerification",
    "Header",
    "PendingFile",
    "Verified",
    "is_archive_url",
    "number_of",
    "open",
    "open_allowed",
    "pending_path",
]
