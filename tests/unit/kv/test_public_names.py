"""What others may rely on."""

from __future__ import annotations

import lapse.kv
import lapse.kv.aio


def test_names() -> None:
    assert lapse.kv.__all__ == sorted(lapse.kv.__all__)
    assert set(lapse.kv.__all__) == {
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
    }
    assert set(lapse.kv.aio.__all__) == {
        "AsyncBatch",
        "AsyncReader",
        "AsyncSnapshot",
        "AsyncStore",
        "AsyncTransaction",
        "open",
    }
