"""What a file says of itself, in its own metadata: which rows it holds, of which job, how many, and their digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lapse.archive.column import ENGINES, ArchivedColumn, columns_from_json
from lapse.archive.layout import final_path, pending_path
from lapse.errors import InvalidValue, LapseError

KEY = b"lapse"
"""The metadata of a file under this key are one JSON object."""
FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What is known of a file before its first row is written.

    `table` is the table's full name in its database, `sequence` counts the files of a job. `time_column` names the
    column that says when a row was archived.
    """

    engine: str
    table: str
    policy_version: int
    job: int
    sequence: int
    cutoff: datetime
    written_at: datetime
    columns: tuple[ArchivedColumn, ...]
    time_column: str | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names:
            raise InvalidValue("columns", names, "at least one")
        if self.engine not in ENGINES or any(column.engine != self.engine for column in self.columns):
            raise InvalidValue("engine", self.engine, f"one of {', '.join(ENGINES)}, the same for every column")
        if self.time_column is not None and self.time_column not in names:
            raise InvalidValue("time_column", self.time_column, "a column of the table")
        for name, moment in (("cutoff", self.cutoff), ("written_at", self.written_at)):
            if moment.tzinfo is None:
                raise InvalidValue(name, moment, "a time with its zone")

    @property
    def path(self) -> str:
        """Where the file is once it is published, in its archive."""
        names = [column.name for column in self.columns]
        return final_path(self.table, self.job, self.sequence, self.written_at.astimezone(UTC), names)

    @property
    def pending_path(self) -> str:
        return pending_path(self.table, self.job, self.sequence)


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A complete file. `first` and `last` are the earliest and latest time of its `time_column`.

    `path` is where it is now, `bytes` how large it is there.
    """

    header: Header
    rows: int
    digest: str
    path: str
    bytes: int
    first: datetime | None = None
    last: datetime | None = None


def describe(file: File, *, digest: bool) -> str:
    """The metadata of a file, with its digest or as the digest covers them."""
    header = file.header
    told = {
        "format": FORMAT,
        "engine": header.engine,
        "table": header.table,
        "policy_version": header.policy_version,
        "job": header.job,
        "sequence": header.sequence,
        "cutoff": _iso(header.cutoff),
        "written_at": _iso(header.written_at),
        "time_column": header.time_column,
        "columns": [column.as_json() for column in header.columns],
        "rows": file.rows,
        "first": _iso(file.first),
        "last": _iso(file.last),
    }
    told |= {"digest": file.digest} if digest else {}
    return json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _iso(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).isoformat() if moment else None


def read_description(metadata: Mapping[bytes, bytes] | None, path: str, size: int) -> File:
    """Raises ValueError where the metadata are not those of a file that Lapse wrote."""
    text = (metadata or {}).get(KEY)
    if text is None:
        raise ValueError("it was not written by Lapse")
    try:
        told: dict[str, Any] = json.loads(text)
        if told["format"] != FORMAT:
            raise ValueError(f"its format is {told['format']}, and this version of Lapse knows {FORMAT}")
        return _file(told, path, size)
    except (KeyError, TypeError, AttributeError, LapseError) as error:
        raise ValueError(f"its metadata cannot be read: {error}") from error


def _file(told: dict[str, Any], path: str, size: int) -> File:
    header = Header(
        engine=told["engine"],
        table=told["table"],
        policy_version=told["policy_version"],
        job=told["job"],
        sequence=told["sequence"],
        cutoff=datetime.fromisoformat(told["cutoff"]),
        written_at=datetime.fromisoformat(told["written_at"]),
        columns=columns_from_json(told["engine"], told["columns"]),
        time_column=told["time_column"],
    )
    first, last = (datetime.fromisoformat(told[name]) if told[name] else None for name in ("first", "last"))
    return File(header=header, rows=told["rows"], digest=told["digest"], path=path, bytes=size, first=first, last=last)
