"""Counters of the key-value stores, in the registry that the rest of Lapse uses."""

from __future__ import annotations

from math import nan
from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge

from lapse.kv.values import PurgeResult

_FAMILIES: dict[str, tuple[type, str, str]] = {
    "hidden": (Counter, "lapse_kv_hidden_on_read", "Expired rows that a read did not return"),
    "purged": (Counter, "lapse_kv_purged_rows", "Expired rows removed by a purge"),
    "errors": (Counter, "lapse_kv_purge_errors", "Purges that failed"),
    "backlog": (Gauge, "lapse_kv_backlog_rows", "Expired rows still stored when last looked at, NaN if not known"),
    "oldest": (
        Gauge,
        "lapse_kv_oldest_expired_timestamp_seconds",
        "Expiry of the oldest expired row still stored when last looked at, 0 for none, NaN if not known",
    ),
    "last_purge": (Gauge, "lapse_kv_last_purge_timestamp_seconds", "When the last purge ended"),
    "purge_seconds": (Gauge, "lapse_kv_last_purge_duration_seconds", "How long the last purge took"),
}
_registered: WeakKeyDictionary[CollectorRegistry, tuple[dict[str, Any], set[str]]] = WeakKeyDictionary()
"""A registry accepts each name only once. And the stores that have metrics in it."""


class StoreMetrics:
    def __init__(self, registry: CollectorRegistry, store: str) -> None:
        if registry not in _registered:
            families = {
                name: kind(full_name, text, ("store",), registry=registry)
                for name, (kind, full_name, text) in _FAMILIES.items()
            }
            _registered[registry] = families, set()
        families, stores = _registered[registry]
        self._all = {name: family.labels(store) for name, family in families.items()}
        if store not in stores:  # nothing is known of its backlog yet, which is not to say that there is none
            stores.add(store)
            self._all["backlog"].set(nan)
            self._all["oldest"].set(nan)

    def hidden(self, rows: int = 1) -> None:
        self._all["hidden"].inc(rows)

    def purge_finished(self, result: PurgeResult, now_ms: int) -> None:
        self._all["purged"].inc(result.purged)
        self._all["purge_seconds"].set(result.elapsed_s)
        self._all["last_purge"].set(now_ms / 1000)
        oldest_s = 0 if result.oldest_left is None else result.oldest_left.timestamp()
        self._all["backlog"].set(nan if result.left is None else result.left)
        self._all["oldest"].set(nan if result.left is None else oldest_s)

    def purge_failed(self) -> None:
        self._all["errors"].inc()

    def counted(self, *, expired: int, oldest_ms: int) -> None:
        self._all["backlog"].set(expired)
        self._all["oldest"].set(oldest_ms / 1000 if expired else 0)
