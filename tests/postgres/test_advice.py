"""Advice about partitioned tables, and a table whose name is as long as names get."""

from __future__ import annotations

import pytest

from lapse.errors import NotPermitted, Unsupported
from tests.conformance.harness import Harness
from tests.conformance.test_advice import advice, run_all

PARTITIONED = """
CREATE TABLE events (id bigint, ts timestamptz NOT NULL) PARTITION BY RANGE (ts);
CREATE TABLE events_old PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE events_new PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE events_rest PARTITION OF events DEFAULT;
ALTER TABLE events TTL = ts + INTERVAL 1 DAY;
"""


def test_each_partition_gets_an_index_of_its_own(h: Harness) -> None:
    h.sql(PARTITIONED)
    assert sum("INDEX" in statement for statement in run_all(h, "events")) == 3


def test_partitions_that_are_dropped_need_none(h: Harness) -> None:
    h.sql(PARTITIONED)
    h.sql("ALTER TABLE events SET (ttl_partition_drop = 'on')")
    assert not [statement for statement in advice(h, "events") if "INDEX" in statement]


def test_a_foreign_key_of_a_partitioned_table(h: Harness) -> None:
    h.events()
    h.sql("CREATE TABLE child (id bigint, event bigint REFERENCES events (id)) PARTITION BY HASH (id)")
    h.sql("CREATE TABLE child_0 PARTITION OF child FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    assert any('ON "public"."child"' in statement for statement in run_all(h, "events"))


def test_a_name_of_63_bytes(h: Harness) -> None:
    name = "n" * 63
    h.sql(f"CREATE TABLE {name} (id bigint PRIMARY KEY) WITH (ttl_expire_after = '1 day')")
    h.run(name)
    with pytest.raises(Unsupported, match="longer than 63 bytes"):
        h.sql(f"ALTER TABLE {name} SET (ttl_hide_expired = 'view')")
    h.sql(f"ALTER TABLE {name} RESET (ttl)")


def test_who_is_not_the_owner_is_told_so(h: Harness) -> None:
    h.events()
    h.sql("CREATE TABLE mine (id bigint PRIMARY KEY)")
    h.sql("DROP ROLE IF EXISTS lapse_stranger; CREATE ROLE lapse_stranger LOGIN")
    with (
        type(h.owner)(h.url.replace("//postgres@", "//lapse_stranger@")) as stranger,
        pytest.raises(NotPermitted, match="belongs to postgres") as refused,
    ):
        stranger.execute("ALTER TABLE mine SET (ttl_expire_after = '1 day')")
    assert "GRANT" not in str(refused.value.hint)
    h.sql("DROP ROLE lapse_stranger")
