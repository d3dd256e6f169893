"""Counters of the key-value stores, in the registry that the rest of Lapse uses."""

from __future__ import annotations

from math import nan
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge

from lapse.kv.values import PurgeResult

_LABELS = ("store",)
_families: WeakKeyDictionary[CollectorRegistry, Families] = WeakKeyDictionary()


class Families:
    """The metric families of one registry; a registry accepts each name only once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.hidden = Counter(
            "lapse_kv_hidden_on_read", "Expired rows that a read did not return", _LABELS, registry=registry
        )
        self.purged = Counter("lapse_kv_purged_rows", "Expired rows removed by a purge", _LABELS, registry=registry)
        self.purge_errors = Counter("lapse_kv_purge_errors", "Purges that failed", _LABELS, registry=registry)
        self.backlog = Gauge(
            "lapse_kv_backlog_rows",
            "Expired rows still stored when last looked at, NaN if a purge ended before it had counted them",
            _LABELS,
            registry=registry,
        )
        self.oldest_expired = Gauge(
            "lapse_kv_oldest_expired_timestamp_seconds",
            "Expiry of the oldest expired row still stored when last looked at, 0 for none, NaN if not known",
            _LABELS,
            registry=registry,
        )
        self.last_purge = Gauge(
            "lapse_kv_last_purge_timestamp_seconds", "When the last purge ended", _LABELS, registry=registry
        )
        self.purge_seconds = Gauge(
            "lapse_kv_last_purge_duration_seconds", "How long the last purge took", _LABELS, registry=registry
        )


class StoreMetrics:
    """The metrics of one store."""

    def __init__(self, registry: CollectorRegistry, store: str) -> None:
        families = _families.get(registry)
        if families is None:
            families = _families[registry] = Families(registry)
        self.hidden = families.hidden.labels(store)
        self._purged = families.purged.labels(store)
        self._errors = families.purge_errors.labels(store)
        self._backlog = families.backlog.labels(store)
        self._oldest = families.oldest_expired.labels(store)
        self._last = families.last_purge.labels(store)
        self._seconds = families.purge_seconds.labels(store)

    def purge_finished(self, result: PurgeResult, now_ms: int) -> None:
        self._purged.inc(result.purged)
        self._seconds.set(result.elapsed_s)
        self._last.set(now_ms / 1000)
        if result.left is None:
            self._backlog.set(nan)
            self._oldest.set(nan)
        else:
            self._backlog.set(result.left)
            self._oldest.set(0 if result.oldest_left is None else result.oldest_left.timestamp())

    def purge_failed(self) -> None:
        self._errors.inc()

    def looked_at(self, *, expired: int, oldest_ms: int | None) -> None:
        self._backlog.set(expired)
        if oldest_ms is not None or not expired:
            self._oldest.set((oldest_ms or 0) / 1000)
