"""Every block of the guides that is written for PostgreSQL runs there."""

from __future__ import annotations

import pytest

from tests.conformance.harness import Harness
from tests.guides import blocks, guides_with

TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, created_at timestamptz)"
LEAVES = (
    "CREATE TABLE events (id bigint, created_at timestamptz NOT NULL) PARTITION BY RANGE (created_at);"
    "CREATE TABLE events_2020 PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2021-01-01')"
)
BEFORE = {
    "from-cockroachdb-tidb": "",
    # Of the extensions that users come from, no more than what the statements touch.
    "from-pg-cron": f"""{TABLE}; CREATE SCHEMA cron;
        CREATE FUNCTION cron.schedule(text, text, text) RETURNS bigint LANGUAGE sql AS 'SELECT 1'""",
    "from-pg-partman": f"{LEAVES}; CREATE TABLE part_config (parent_table text, retention text)",
}
LEFT = {"from-cockroachdb-tidb": 0, "from-pg-cron": 1, "from-pg-partman": 1}
"""Policies, once all blocks of a guide have run."""


def test_no_guide_is_left_out() -> None:
    assert set(BEFORE) == guides_with("postgresql")


@pytest.mark.parametrize("guide", sorted(BEFORE))
def test_every_block_runs(h: Harness, guide: str) -> None:
    if BEFORE[guide]:
        h.sql(BEFORE[guide])
    for block in blocks(guide, "postgresql"):
        h.sql(block)
    assert [str(stored.table) for stored in h.db.policies()] == ["public.events"] * LEFT[guide]
