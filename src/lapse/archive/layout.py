"""Where files are inside an archive.

    _lapse_owner                                               which database the archive belongs to
    public.events/year=2026/month=11/day=17/job-42-1.parquet   published
    public.events/_pending/job-42-2.parquet.pending            not yet: readers pass over `_` and `.pending`

A table with a column `year`, `month` or `day` has `archived_year=…` and so on: readers would take the folder's value
for the column's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from urllib.parse import unquote

OWNER = "_lapse_owner"
PROBE = "_lapse_probe"
PENDING_FOLDER = "_pending"
PUBLISHED_SUFFIX = ".parquet"
PENDING_SUFFIX = ".parquet.pending"

_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|%#=&+\s]|^[._]|\.$')
_NAME = re.compile(r"/job-\d+-(\d{1,18})\.parquet(?:\.pending)?$")
_PARTS = ("year", "month", "day")


def table_folder(table: str) -> str:
    """A table's name as that of a folder, on every file system: what is special in one is escaped as in a URL."""
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), table)


def table_of(folder: str) -> str:
    return unquote(folder)


def final_path(table: str, job: int, sequence: int, written_at: datetime, columns: Iterable[str]) -> str:
    prefix = "archived_" if {name.lower() for name in columns} & set(_PARTS) else ""
    day = "/".join(f"{prefix}{part}={value}" for part, value in zip(_PARTS, _date(written_at), strict=True))
    return f"{table_folder(table)}/{day}/job-{job}-{sequence}{PUBLISHED_SUFFIX}"


def pending_path(table: str, job: int, sequence: int) -> str:
    return f"{table_folder(table)}/{PENDING_FOLDER}/job-{job}-{sequence}{PENDING_SUFFIX}"


def number_of(path: str) -> int:
    """The sequence of a file, by its name; -1 where the name is not one of Lapse's."""
    found = _NAME.search(path)
    return int(found[1]) if found else -1


def is_published(path: str) -> bool:
    return path.endswith(PUBLISHED_SUFFIX) and not any(part.startswith(("_", ".")) for part in path.split("/"))


def is_pending(path: str) -> bool:
    return path.endswith(PENDING_SUFFIX) and path.split("/")[-2:-1] == [PENDING_FOLDER]


def _date(moment: datetime) -> tuple[str, str, str]:
    return f"{moment.year:04}", f"{moment.month:02}", f"{moment.day:02}"
