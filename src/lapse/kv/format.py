"""A store's metadata: stored with its rows, and read before anything else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from lapse.errors import InvalidValue, StoreError, StoreTooNew
from lapse.kv.ttl import read_duration
from lapse.kv.values import PurgeRecord, PurgeResult
from lapse.model.interval import Interval

FORMAT_VERSION = 3
"""Rows are those of version 2. Units of purging know more, and there are no time buckets."""
_OLDEST_VERSION = 2

FORMAT_KEY = b"format"
DEFAULT_TTL_KEY = b"default_ttl"
MARK_KEY = b"mark"
"""The latest time the store has seen."""
BUCKETS_KEY = b"buckets"
UNITS_KEY = b"units"
PURGE_KEY = b"purge"
HEARTBEAT_KEY = b"heartbeat"
WRITTEN_KEY = b"written"
"""What was written since the last purge; there only while the store is closed."""
HISTORY_KEY = b"history"
PAUSE_KEY = b"pause"
OWNER_KEY = b"owner"
"""The process that has a store in a bucket open for writing; present only while it is open."""
OWN_KEYS = frozenset(value for name, value in globals().items() if name.endswith("_KEY"))

KEPT_PURGES = 100
_RECORDED = {field.name for field in fields(PurgeRecord)} & {field.name for field in fields(PurgeResult)}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFormat:
    """Fixed when the store is created.

    `bucket_ms` is not 0 in a store with time buckets, which is converted when it is opened for writing. With
    `engine_expiry` the engine is told each row's expiry plus `snapshot_lifetime_ms`, so that its own compaction purges,
    but not under an open snapshot.
    """

    engine: str
    created_ms: int
    bucket_ms: int = 0
    engine_expiry: bool = False
    snapshot_lifetime_ms: int = 0
    segmented: bool = False
    """On SlateDB: the store once had time buckets, so its keys have a prefix."""
    version: int = FORMAT_VERSION

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


@contextmanager
def _reading(what: str, raw: bytes | None) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, InvalidValue) as error:
        raise StoreError(f"the store's {what} cannot be read: {(raw or b'')[:80]!r}") from error


def read_format(raw: bytes) -> StoreFormat:
    with _reading("format record", raw):
        found = json.loads(raw)
        version = int(found["version"])
        if version > FORMAT_VERSION:
            message = f"the store has format {version}; this Lapse reads up to {FORMAT_VERSION}"
            raise StoreTooNew(message, hint="upgrade lapse-ttl")
        if version < _OLDEST_VERSION:
            raise StoreError(f"the store has format {version}, which was never released")
        return StoreFormat(**found)


def pack_default(default: Interval | None) -> bytes:
    return b"" if default is None else str(default).encode()


def read_default(raw: bytes | None) -> Interval | None:
    with _reading("default TTL", raw):
        return read_duration(raw.decode(), name="default_ttl") if raw else None


def pack_mark(mark_ms: int) -> bytes:
    return b"%d" % mark_ms


def read_mark(raw: bytes | None) -> int:
    with _reading("clock mark", raw):
        return int(raw or 0)


def with_purge(history: bytes | None, result: PurgeResult, *, now: datetime) -> bytes:
    """The history with one more purge in front."""
    found = result.verification
    record: dict[str, Any] = {name: getattr(result, name) for name in _RECORDED} | {
        "at": now.isoformat(),
        "cutoff": result.cutoff.isoformat(),
        "elapsed_s": round(result.elapsed_s, 3),
        "verified": found is not None and found.clean,
    }
    return json.dumps([record, *json.loads(history or b"[]")][:KEPT_PURGES]).encode()


def read_history(raw: bytes | None) -> list[PurgeRecord]:
    """Latest first."""
    with _reading("history of purges", raw):
        records = json.loads(raw or b"[]")
        for record in records:
            record |= {name: datetime.fromisoformat(record[name]) for name in ("at", "cutoff")}
            record["reasons"] = tuple(record["reasons"])
        return [PurgeRecord(**record) for record in records]
