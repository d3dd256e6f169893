"""What users may import from `lapse`."""

from __future__ import annotations

import pytest

import lapse

NAMES = [
    "BINARY",
    "Binary",
    "CatalogError",
    "Connection",
    "Cursor",
    "DATETIME",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Drift",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "Lapse",
    "LapseError",
    "NUMBER",
    "NotFound",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "ROWID",
    "Refused",
    "STRING",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "UsageError",
    "Warning",
    "__version__",
    "apilevel",
    "connect",
    "open",
    "paramstyle",
    "threadsafety",
]


def test_public_names() -> None:
    assert sorted(lapse.__all__) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    assert getattr(lapse, name) is not None
    assert name in dir(lapse)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = lapse.nope
