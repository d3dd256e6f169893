"""Key-value stores with per-row TTL: SlateDB and RocksDB.

import lapse.kv

with lapse.kv.open("rocksdb:/var/lib/app/sessions", default_ttl="30 days") as store:
    store.put(b"session:7", b"...")
"""

from lapse.kv.purger import Purger, PurgerConfig, PurgeRun, StoreReport
from lapse.kv.sync import Batch, Reader, Snapshot, Store, Transaction, open
from lapse.kv.ttl import Ttl, TtlLike
from lapse.kv.values import Meta, Preview, PurgeRecord, PurgeResult, Stats, Verification

__all__ = [
    "Batch",
    "Meta",
    "Preview",
    "PurgeRecord",
    "PurgeResult",
    "PurgeRun",
    "Purger",
    "PurgerConfig",
    "Reader",
    "Snapshot",
    "Stats",
    "Store",
    "StoreReport",
    "Transaction",
    "Ttl",
    "TtlLike",
    "Verification",
    "open",
]
