"""Archives with a few rows in them, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lapse.archive
from lapse.archive import Archive, ArchivedColumn, File, Header

NOW = datetime(2026, 11, 17, 21, 0, tzinfo=UTC)
COLUMNS = tuple(
    ArchivedColumn(engine="postgresql", name=name, type=type_name)
    for name, type_name in (
        ("id", "bigint"),
        ("expires_at", "timestamp with time zone"),
        ("amount", "numeric(10,2)"),
        ("note", "text"),
        ("archived_at", "timestamp with time zone"),
    )
)


def open_folder(folder: Path, **options: int) -> Archive:
    return lapse.archive.open(f"file://{folder}", **options)


def header(*, job: int = 1, sequence: int = 1, table: str = "public.events", **others: Any) -> Header:
    given: dict[str, Any] = {
        "engine": "postgresql",
        "policy_version": 3,
        "cutoff": NOW - timedelta(hours=1),
        "written_at": NOW,
        "columns": COLUMNS,
        "time_column": "archived_at",
    }
    return Header(table=table, job=job, sequence=sequence, **(given | others))


def rows(first: int, count: int, *, hour: int = 20) -> list[list[str | None]]:
    """The cells of a batch, by column; one in ten expires never."""
    numbers = range(first, first + count)
    return [
        [str(number) for number in numbers],
        ["infinity" if number % 10 == 0 else f"2026-11-{1 + number % 28:02} 10:00:00.25+00" for number in numbers],
        [None if number % 7 == 0 else f"{number}.50" for number in numbers],
        [f"note 'of' {number}\n" for number in numbers],
        [f"2026-11-17 {hour:02}:00:00+00"] * count,
    ]


def write(archive: Archive, batches: Sequence[Sequence[Any]], **names: Any) -> File:
    with archive.begin(header(**names)) as pending:
        for batch in batches:
            pending.write(batch)
        return pending.finish()
