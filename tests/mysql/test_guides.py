"""Every block of the guides that is written for MariaDB and MySQL runs there."""

from __future__ import annotations

from tests.conformance.harness import Harness
from tests.guides import blocks, guides_with


def test_every_block_runs(h: Harness) -> None:
    for guide in guides_with("mysql"):
        for block in blocks(guide, "mysql"):
            h.sql(block)
    assert h.db.policies() == []
    assert h.db.settings()["tidb_ttl_delete_rate_limit"] == "5000"
