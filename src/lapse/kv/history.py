"""What purges did to a store, kept in the store itself."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import datetime
from typing import Any

from lapse.errors import StoreError
from lapse.kv.values import PurgeRecord, PurgeResult

KEPT_PURGES = 100
_SHARED = {field.name for field in fields(PurgeRecord)} & {field.name for field in fields(PurgeResult)}


def with_result(raw: bytes | None, result: PurgeResult, *, now: datetime) -> bytes:
    found = result.verification
    record: dict[str, Any] = {name: getattr(result, name) for name in _SHARED} | {
        "at": now.isoformat(),
        "cutoff": result.cutoff.isoformat(),
        "elapsed_s": round(result.elapsed_s, 3),
        "verified": found is not None and found.clean,
    }
    return json.dumps([record, *json.loads(raw or b"[]")][:KEPT_PURGES]).encode()


def read_history(raw: bytes | None) -> list[PurgeRecord]:
    """Latest first."""
    try:
        return [
            PurgeRecord(
                **record
                | {
                    "at": datetime.fromisoformat(record["at"]),
                    "cutoff": datetime.fromisoformat(record["cutoff"]),
                    "reasons": tuple(record["reasons"]),
                }
            )
            for record in json.loads(raw or b"[]")
        ]
    except (TypeError, KeyError, ValueError) as error:
        raise StoreError("the store's history of purges cannot be read") from error
