"""What a store says about itself: kept beside its rows, read before anything else is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from lapse.errors import InvalidValue, StoreError, StoreFromTheFuture
from lapse.kv.options import Options
from lapse.kv.ttl import Duration, read_duration

FORMAT_VERSION = 2

FORMAT_KEY = b"format"
DEFAULT_TTL_KEY = b"default_ttl"
MARK_KEY = b"mark"
"""The latest time the store has seen."""
BUCKETS_KEY = b"buckets"
UNITS_KEY = b"units"
PURGE_KEY = b"purge"
HEARTBEAT_KEY = b"heartbeat"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFormat:
    """Fixed when the store is created.

    `bucket_ms` is the width of a time bucket, 0 for a store without buckets. With `engine_expiry` the engine
    is told each row's expiry plus `snapshot_lifetime_ms`, so that its own compaction purges, but not under an
    open snapshot.
    """

    engine: str
    created_ms: int
    bucket_ms: int = 0
    engine_expiry: bool = False
    snapshot_lifetime_ms: int = 0
    version: int = FORMAT_VERSION

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


def read_format(raw: bytes) -> StoreFormat:
    try:
        fields = json.loads(raw)
        version = int(fields["version"])
    except (ValueError, TypeError, KeyError):
        raise StoreError(f"the store's description cannot be read: {raw[:80]!r}") from None
    if version > FORMAT_VERSION:
        raise StoreFromTheFuture(
            f"the store has format {version}; this Lapse reads up to {FORMAT_VERSION}",
            hint="upgrade lapse-ttl",
        )
    if version < FORMAT_VERSION:
        raise StoreError(f"the store has format {version}, which was never released; this Lapse reads {FORMAT_VERSION}")
    try:
        return StoreFormat(**fields)
    except TypeError as error:
        raise StoreError(f"the store's description cannot be read: {error}") from None


def pack_default(default: Duration | None) -> bytes:
    return b"" if default is None else str(default).encode()


def read_default(raw: bytes | None) -> Duration | None:
    if not raw:
        return None
    try:
        return read_duration(raw.decode(), name="default_ttl")
    except (InvalidValue, UnicodeDecodeError) as error:
        raise StoreError(f"the store's default TTL cannot be read: {raw[:80]!r}") from error


def pack_mark(mark_ms: int) -> bytes:
    return b"%d" % mark_ms


def read_mark(raw: bytes | None) -> int:
    try:
        return int(raw or 0)
    except ValueError as error:
        raise StoreError(f"the store's clock mark cannot be read: {raw!r}") from error


def check_bucket(format: StoreFormat, options: Options) -> None:
    """The layout is fixed when a store is created; asking for another one must not be ignored."""
    if options.bucket_ms and options.bucket_ms != format.bucket_ms:
        has = f"buckets of {format.bucket_ms} ms" if format.bucket_ms else "no buckets"
        raise InvalidValue("bucket", f"{options.bucket_ms} ms", f"cannot be changed: the store has {has}")
