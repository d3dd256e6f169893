"""Every key is found once, in the server's own order, whatever its type."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url

from lapse.engines.mysql.engine import MysqlEngine
from lapse.errors import Unsupported
from lapse.runner import atonce
from tests.backends.mariadb import MariadbBackend, MariadbServer
from tests.conformance.harness import Harness
from tests.mysql.numbers import numbers

KEYS: dict[str, list[str]] = {
    "TINYINT": ["-128", "-1", "0", "1", "127"],
    "BIGINT UNSIGNED": ["0", "1", "9223372036854775807", "9223372036854775808", "18446744073709551615"],
    "DECIMAL(65,30)": ["-1.5", "0", "0.000000000000000000000000000001", "99999999999999999999999999999999999.5"],
    "FLOAT": ["-0.1", "0", "0.1", "0.2", "3.4e38"],
    "DOUBLE": ["-1e308", "0.1", "0.30000000000000004", "1e-300", "1e308"],
    "VARBINARY(8)": ["x''", "x'00'", "x'0000'", "x'0001'", "x'27'", "x'5C'", "x'FF00'"],
    "BINARY(3)": ["x'000000'", "x'000001'", "x'270000'", "x'FFFFFF'"],
    "VARCHAR(20) COLLATE utf8mb4_unicode_ci": ["''", "'a'", "'B'", "'ß'", "'ä%'", "'z\\\\\\''", "'日本'", "'😀'"],
    "VARCHAR(20) COLLATE utf8mb4_bin": ["''", "'A'", "'a'", "'Z'", "'ä'"],
    "VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_german2_ci": ["'a'", "'ä'", "'b'", "'Z'"],
    "VARCHAR(20) CHARACTER SET utf16": ["'a'", "'Z'", "'😀'"],
    "CHAR(5) COLLATE utf8mb4_nopad_bin": ["'a'", "'b'", "'ab'"],
    "ENUM('z','b','a','m')": ["'z'", "'b'", "'a'", "'m'"],
    "SET('z','b','a')": ["''", "'z'", "'b'", "'z,b'", "'a'", "'z,a'"],
    "BIT(40)": ["0", "1", "255", "1099511627775"],
    "YEAR": ["0", "1901", "1999", "2155"],
    "DATE": ["'1000-01-01'", "'2026-03-29'", "'9999-12-31'"],
    "DATETIME(6)": ["'1000-01-01'", "'2026-03-29 02:30:00.000001'", "'9999-12-31 23:59:59.999999'"],
    "TIMESTAMP(3)": ["'1970-01-01 00:00:01'", "'2026-10-25 00:30:00.5'", "'2026-10-25 01:30:00'", "'2038-01-19'"],
    "TIME(2)": ["'-838:59:59'", "'-00:00:00.01'", "'00:00:00'", "'838:59:59'"],
    "UUID": [
        "'00000000-0000-0000-0000-000000000000'",
        "'123e4567-e89b-12d3-a456-426655440000'",
        "'f0000000-0000-1000-8000-000000000001'",
    ],
    "INET6": ["'::'", "'::1'", "'::ffff:10.0.0.1'", "'fe80::1'"],
}


@pytest.fixture(scope="module")
def database(backend: MariadbBackend) -> Iterator[Harness]:
    with Harness.fresh(backend) as harness:
        yield harness


@pytest.fixture
def h(database: Harness) -> Iterator[Harness]:
    """One database for all: what differs is one table."""
    yield database
    database.sql("DROP TABLE IF EXISTS events")


def _fill(h: Harness, columns: str, key: str, rows: list[str]) -> None:
    h.sql(f"CREATE TABLE events ({columns}, ts DATETIME, PRIMARY KEY ({key})) TTL = ts + INTERVAL 1 DAY")
    mixed = list(rows)
    random.Random(1).shuffle(mixed)
    old, new = h.at(days=-3), h.at()
    values = ", ".join(f"({row}, {old if number % 3 else new})" for number, row in enumerate(mixed))
    h.sql(f"INSERT INTO events VALUES {values}")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 2, ttl_adaptive = 'off')")


@pytest.mark.parametrize("kind", KEYS)
def test_single_keys(h: Harness, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind in ("UUID", "INET6") and not h.features.uuid_type:
        pytest.skip(f"there is no type {kind}")
    monkeypatch.setattr("lapse.engines.mysql.delete.KeyDeleter._window_for", lambda self, limit: 2)
    rows = KEYS[kind]
    if not h.rows("SHOW COLLATION LIKE 'utf8mb4_nopad_bin'"):
        kind = kind.replace("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
    _fill(h, f"k {kind} NOT NULL", "k", rows)
    alive = (len(rows) + 2) // 3
    job = h.run_one()
    assert (job.counts.deleted, job.counts.held) == (len(rows) - alive, 0)
    assert h.rows("SELECT count(*) FROM events") == [(alive,)]


def test_composite_keys_with_directions(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapse.engines.mysql.delete.KeyDeleter._window_for", lambda self, limit: 3)
    rows = [f"'{a}', {b}, x'{c}'" for a in ("z", "a", "m") for b in (-1, 0, 2) for c in ("00", "0001", "FF")]
    _fill(h, "a ENUM('z','m','a') NOT NULL, b INT NOT NULL, c VARBINARY(4) NOT NULL", "a, b DESC, c", rows)
    assert h.run_one().counts.deleted == 18
    assert h.rows("SELECT count(*) FROM events") == [(9,)]


@pytest.mark.parametrize("direction", ["ASC", "DESC"])
@pytest.mark.parametrize("labels", ["'a','','b','it''s'", "'z','a'", "'',''''"])
def test_enum_keys_with_odd_members(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch, direction: str, labels: str
) -> None:
    """The empty label, a quote in a label, and 0: what the server stores for a value that is no member."""
    monkeypatch.setattr("lapse.engines.mysql.delete.KeyDeleter._window_for", lambda self, limit: 3)
    h.sql(
        f"CREATE TABLE events (k ENUM({labels}) NOT NULL, id INT, ts DATETIME, PRIMARY KEY (k {direction}, id))"
        " TTL = ts + INTERVAL 1 DAY"
    )
    server.execute(
        "SET sql_mode = ''",
        f"INSERT INTO events SELECT seq % (1 + {labels.count(',') + 1}), seq, {h.at(days=-2)} FROM {numbers(60)}",
        f"INSERT INTO events SELECT 'no such label', seq + 100, {h.at(days=-2)} FROM {numbers(10)}",
        database=str(make_url(h.url).database),
    )
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 2, ttl_adaptive = 'off')")
    assert h.run_one().counts.deleted == 70
    assert h.rows("SELECT count(*) FROM events") == [(0,)]


def test_a_unique_key_stands_in_for_a_primary_key(h: Harness) -> None:
    h.sql(
        "CREATE TABLE events (id INT, code CHAR(8) NOT NULL, ts DATETIME, UNIQUE (id), UNIQUE (code)) "
        "TTL = ts + INTERVAL 1 DAY"
    )
    h.sql(f"INSERT INTO events VALUES (NULL, 'a', {h.at(days=-2)}), (NULL, 'b', {h.at()}), (3, 'c', {h.at(days=-2)})")
    assert h.run_one().counts.deleted == 2
    assert h.rows("SELECT code FROM events") == [("b",)]


@pytest.mark.parametrize(
    "key",
    ["id INT, ts DATETIME", "id INT, ts DATETIME, UNIQUE (id)", "id TEXT NOT NULL, ts DATETIME, PRIMARY KEY (id(9))"],
)
def test_a_table_without_a_key_is_refused_and_not_created(h: Harness, key: str) -> None:
    with pytest.raises(Unsupported, match="primary key"):
        h.sql(f"CREATE TABLE events ({key}) TTL = ts + INTERVAL 1 DAY")
    assert h.rows("SHOW TABLES LIKE 'events'") == []


def test_split_ranges_cover_every_key(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MysqlEngine, "features", replace(h.features, rows_per_task=20))
    monkeypatch.setattr(atonce, "SMALL_ROWS", 0)
    monkeypatch.setattr(atonce, "TABLE_ROWS", 0)
    for kind, value, is_cut in (
        ("BIGINT", "CAST(seq AS SIGNED) * 7 - 500", True),
        ("DATETIME", "'2024-02-28' + INTERVAL seq * 700 SECOND", True),
        ("CHAR(36) COLLATE utf8mb4_unicode_ci", "left(sha2(seq, 256), 32)", False),
        ("BINARY(16)", "unhex(left(sha2(seq, 256), 32))", False),
    ):
        h.sql(f"CREATE TABLE events (k {kind} PRIMARY KEY, ts DATETIME)")
        h.sql(f"INSERT INTO events SELECT {value}, '2020-01-01' FROM {numbers(400)}")
        h.sql("ANALYZE TABLE events")
        h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
        job = h.run_one()
        assert (job.tasks_total > 3) == is_cut, kind
        assert job.counts.deleted == 400, kind
        h.sql("DROP TABLE events")


@dataclass(frozen=True)
class _Random:
    kind: str
    values: st.SearchStrategy[str]


def _text(value: str) -> str:
    return f"_utf8mb4 x'{value.encode().hex()}'"


RANDOM = [
    _Random("BIGINT UNSIGNED", st.integers(0, 2**64 - 1).map(str)),
    _Random("DECIMAL(40,10)", st.decimals(-(10**20), 10**20, places=10).map(lambda d: f"{d:f}")),
    _Random("VARBINARY(20)", st.binary(max_size=20).map(lambda b: f"x'{b.hex()}'")),
    _Random(
        "VARCHAR(20) COLLATE utf8mb4_unicode_ci",
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20).map(_text),
    ),
    _Random(
        "DOUBLE",
        st.floats(allow_nan=False, allow_infinity=False).map(lambda f: f"{f!r}" if "e" in f"{f!r}" else f"{f!r}e0"),
    ),
]


@pytest.mark.parametrize("case", RANDOM, ids=lambda case: case.kind)
def test_random_keys(h: Harness, case: _Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapse.engines.mysql.delete.KeyDeleter._window_for", lambda self, limit: 3)
    h.sql(f"CREATE TABLE events (k {case.kind} PRIMARY KEY, ts DATETIME) TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 4, ttl_adaptive = 'off')")

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.lists(case.values, min_size=1, max_size=25, unique=True), st.data())
    def check(values: list[str], data: st.DataObject) -> None:
        h.sql("DELETE FROM events")
        for value in values:
            old = data.draw(st.booleans())
            h.sql(f"INSERT IGNORE INTO events VALUES ({value}, {h.at(days=-2 if old else 0)})")
        ((expired, rows),) = h.rows("SELECT coalesce(sum(ts < '2026-03-15'), 0), count(*) FROM events")
        assert h.run_one().counts.deleted == expired
        assert h.rows("SELECT count(*) FROM events") == [(rows - expired,)]

    check()
