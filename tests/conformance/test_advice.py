"""Every piece of advice can be executed as it is printed, and is not given again afterwards."""

from __future__ import annotations

import re

from tests.conformance.harness import Harness

LONG = "events_" + "n" * 53
_SQL = re.compile(r"(CREATE|ALTER|DROP|SELECT|COMMENT|PRAGMA|VACUUM)\b")


def advice(h: Harness, *tables: str) -> list[str]:
    """SQL that preview and doctor say to run, as the owner sees it."""
    previews = [said.statement for table in tables for each in h.owner.preview(table) for said in each.advice]
    found = [finding.fix for finding in h.owner.doctor()]
    return list(dict.fromkeys(text for text in (*previews, *found) if text and _SQL.match(text)))


def run_all(h: Harness, *tables: str) -> list[str]:
    # The server of the tests has autovacuum off on purpose, and other tests share it.
    ran = [statement for statement in advice(h, *tables) if "ALTER SYSTEM" not in statement]
    for statement in ran:
        h.sql(statement)
    assert not set(advice(h, *tables)) & set(ran)
    return ran


def test_an_index_on_the_expiry(h: Harness) -> None:
    h.events()
    assert any("INDEX" in statement for statement in run_all(h, "events"))


def test_names_that_are_taken_or_too_long(h: Harness) -> None:
    big, instant = h.backend.bigint, h.backend.instant
    h.sql(f"CREATE TABLE {LONG} (id {big} PRIMARY KEY, ts {instant})")
    h.sql(f"ALTER TABLE {LONG} TTL = ts + INTERVAL 1 DAY")
    h.sql(f"CREATE TABLE events (id {big} PRIMARY KEY, ts {instant}, other {big})")
    h.sql("CREATE INDEX events_ts ON events (other)")
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    assert sum("INDEX" in statement for statement in run_all(h, "events", LONG)) == 2


def test_foreign_keys(h: Harness) -> None:
    h.events()
    big = h.backend.bigint
    for name in ("child", "other"):
        h.sql(f"CREATE TABLE {name} (id {big} PRIMARY KEY, event {big} REFERENCES events (id) ON DELETE CASCADE)")
    assert run_all(h, "events")
