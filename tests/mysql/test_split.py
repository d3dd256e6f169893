"""Cutting a table, and asking what has expired, read little of it, whatever the key's type; no key is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy, Target
from lapse.engines.mysql import forecast, keys, split
from lapse.engines.mysql.keys import Walk
from lapse.model.interval import DAY, Interval
from lapse.model.policy import Policy
from lapse.model.table import TableName
from tests.backends.mariadb import MariadbBackend
from tests.conformance.harness import Harness
from tests.conformance.test_statements import watched
from tests.mysql.numbers import numbers

ROWS = 150_000
PIECES = 12
EXPIRED_SHARE = 0.4
MOST_READ_TO_SPLIT = 300
MOST_READ_TO_SURVEY = 100_000
"""Places times rows of each, three times over: read, kept aside and grouped. A scan reads every row twice."""
POLICY = Policy(column="ts", interval=Interval(micros=30 * DAY))

LARGE = {
    "BIGINT, sparse": ("k BIGINT PRIMARY KEY", "seq * 1000000007"),
    "BIGINT with an outlier": ("k BIGINT PRIMARY KEY", f"if(seq = {ROWS}, 9000000000000000000, seq)"),
    "BIGINT, descending": ("k BIGINT, PRIMARY KEY (k DESC)", "CAST(seq AS SIGNED) * 3 - 1000"),
    "DATETIME(6)": ("k DATETIME(6) PRIMARY KEY", "'2020-02-28' + INTERVAL seq * 700.123456 SECOND"),
    "TIMESTAMP": ("k TIMESTAMP PRIMARY KEY", "from_unixtime(seq * 7001)"),
    "DATE and a number": ("k DATE, n INT, PRIMARY KEY (k, n)", "'2024-01-01' + INTERVAL seq % 90 DAY, seq"),
    "tenants": ("t INT, k UUID, PRIMARY KEY (t, k)", "seq % 100, as_uuid(left(sha2(seq, 256), 32), '4')"),
}
UNCUT = {
    "DECIMAL": ("k DECIMAL(20, 4) PRIMARY KEY", "seq / 4 - 1000"),
    "DOUBLE": ("k DOUBLE PRIMARY KEY", "seq / 7e0 - 1e3"),
    "TIME(3)": ("k TIME(3) PRIMARY KEY", f"sec_to_time((CAST(seq AS SIGNED) - {ROWS // 2}) * 0.5)"),
    "random UUID": ("k UUID PRIMARY KEY", "as_uuid(left(sha2(seq, 256), 32), '4')"),
    "UUID of one machine": ("k UUID PRIMARY KEY", "concat(lpad(hex(seq * 7), 8, '0'), '-1234-11f0-8000-0242ac110002')"),
    "UUID by time": (
        "k UUID PRIMARY KEY",
        "as_uuid(concat(lpad(hex(1700000000000 + seq * 900), 12, '0'), right(left(sha2(seq, 256), 32), 20)), '7')",
    ),
    "INET6": ("k INET6 PRIMARY KEY", "concat('2001:db8::', hex(seq DIV 65536), ':', hex(seq % 65536))"),
    "BINARY": ("k BINARY(16) PRIMARY KEY", "unhex(left(sha2(seq, 256), 32))"),
    "VARCHAR with a prefix": ("k VARCHAR(40) PRIMARY KEY", "concat('session:', left(sha2(seq, 256), 32))"),
    "one tenant": ("t INT, k DECIMAL(12, 0), PRIMARY KEY (t, k)", "7, seq"),
    "YEAR and a number": ("k YEAR, n INT, PRIMARY KEY (k, n)", "if(seq = 1, 0, 1990 + seq % 30), seq"),
    "SET and a number": ("k SET('a', 'b'), n INT, PRIMARY KEY (k, n)", "1 + seq % 3, seq"),
    "ENUM and a number": ("k ENUM('a', 'b'), n INT, PRIMARY KEY (k, n)", "1 + seq % 2, seq"),
}


ALL = LARGE | UNCUT


@pytest.fixture(scope="module")
def database(backend: MariadbBackend) -> Iterator[Harness]:
    with Harness.fresh(backend) as harness:
        harness.sql(
            "CREATE FUNCTION as_uuid(t CHAR(32), version CHAR(1)) RETURNS CHAR(36) DETERMINISTIC RETURN"
            " concat_ws('-', left(t, 8), substr(t, 9, 4), concat(version, substr(t, 14, 3)),"
            " concat('8', substr(t, 18, 3)), right(t, 12))"
        )
        yield harness


@pytest.fixture
def h(database: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.setattr(forecast, "SCANNED_ROWS", ROWS // 2)
    yield database
    database.sql("DROP TABLE IF EXISTS events")


class Reads:
    """Rows that were read on a connection since this was made, from temporary tables as well."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._before = self._total()

    def _total(self) -> int:
        found = self._connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read_%%'")
        return sum(int(value) for _, value in found)

    def since(self) -> int:
        return self._total() - self._before


def _large(h: Harness, columns: str, values: str) -> None:
    if any(kind in columns for kind in ("UUID", "INET6")) and not h.features.uuid_type:
        pytest.skip("there is no such type")
    # With all pages in the sample the server's statistics are the same in every run.
    h.sql(f"CREATE TABLE events (ts DATETIME, {columns}) STATS_SAMPLE_PAGES = 10000")
    old, new = h.at(days=-40), h.at()
    h.sql(
        f"INSERT INTO events SELECT if(crc32(seq) % 100 < {100 * EXPIRED_SHARE}, {old}, {new}), {values}"
        f" FROM {numbers(ROWS)}"
    )
    h.sql("ANALYZE TABLE events")


def _target(h: Harness, connection: Connection) -> Target:
    table = h.db.engine.describe(connection, TableName("events"))
    declared = BoundPolicy(table=table, policy=POLICY)
    return h.db.engine.target(connection, declared, h.now)


@pytest.mark.parametrize("case", LARGE)
def test_a_large_table_is_cut_evenly_and_hardly_read(h: Harness, case: str) -> None:
    _large(h, *LARGE[case])
    with h.db.engine.connection() as connection:
        target = _target(h, connection)
        reads = Reads(connection)
        spans = h.db.engine.split(connection, target, PIECES)
        assert reads.since() <= MOST_READ_TO_SPLIT
        sizes = _sizes(connection, _walk(connection), [(span.start, span.end) for span in spans])
    assert sum(sizes) == ROWS
    assert PIECES // 2 <= len(spans) <= PIECES
    assert max(sizes) <= 4 * ROWS / PIECES


@pytest.mark.parametrize("case", ALL)
def test_what_has_expired_is_told_without_a_scan(h: Harness, case: str) -> None:
    _large(h, *ALL[case])
    with h.db.engine.connection() as connection:
        target = _target(h, connection)
        reads = Reads(connection)
        found = h.db.engine.expiring(connection, target.declared, (h.now, h.now + timedelta(days=31)), exact=False)
        assert reads.since() <= MOST_READ_TO_SURVEY
        survey = h.db.engine.survey(connection, target)
    assert found.rows == pytest.approx(ROWS, rel=0.25)
    assert found.counts == pytest.approx((EXPIRED_SHARE * found.rows, found.rows), rel=0.1)
    assert (found.exact, survey.exact, survey.expired) == (False, False, found.counts[0])


@pytest.mark.parametrize("case", UNCUT)
def test_keys_that_cannot_be_cut_make_one_range(h: Harness, case: str) -> None:
    _large(h, *UNCUT[case])
    with h.db.engine.connection() as connection:
        target = _target(h, connection)
        reads = Reads(connection)
        assert len(h.db.engine.split(connection, target, PIECES)) == 1
        assert reads.since() <= MOST_READ_TO_SPLIT


def _walk(connection: Connection) -> Walk:
    return keys.load(connection, TableName("events"), "PRIMARY")


def _sizes(connection: Connection, walk: Walk, edges: list[tuple[str | None, str | None]]) -> list[int]:
    """How many rows lie in each range, counted as the deleter's conditions see them."""
    sizes = []
    for start, end in edges:
        where = [walk.after(keys.decode(start, walk), inclusive=True)] if start else []
        if end:
            bound = keys.decode(end.removeprefix(keys.INCLUSIVE), walk)
            where.append(walk.until(bound, inclusive=end.startswith(keys.INCLUSIVE)))
        sql = f"SELECT count(*) FROM events WHERE {' AND '.join(where) or 'TRUE'}"
        sizes.append(int(connection.exec_driver_sql(sql).scalar_one()))
    return sizes


@dataclass(frozen=True)
class _Random:
    key: str
    values: st.SearchStrategy[str]


def _quoted(value: object) -> str:
    return f"'{value}'"


RANDOM = [
    _Random("k BIGINT UNSIGNED PRIMARY KEY", st.integers(0, 2**64 - 1).map(str)),
    _Random("k DECIMAL(40,10), PRIMARY KEY (k DESC)", st.decimals(-(10**20), 10**20, places=10).map("{:f}".format)),
    _Random("k DOUBLE PRIMARY KEY", st.floats(allow_nan=False, allow_infinity=False).map("{:.17e}".format)),
    _Random("k FLOAT PRIMARY KEY", st.floats(-(2.0**100), 2.0**100, width=32).map("{:.17e}".format)),
    _Random("k BIT(40) PRIMARY KEY", st.integers(0, 2**40 - 1).map(str)),
    _Random("k YEAR PRIMARY KEY", st.one_of(st.just("0"), st.integers(1901, 2155).map(str))),
    _Random("k YEAR, PRIMARY KEY (k DESC)", st.one_of(st.just("0"), st.integers(1901, 2155).map(str))),
    _Random("k DATE PRIMARY KEY", st.one_of(st.just("'0000-00-00'"), st.just("'2024-00-00'"), st.dates().map(_quoted))),
    _Random("k DATETIME(6), PRIMARY KEY (k DESC)", st.datetimes().map(_quoted)),
    _Random(
        "k TIME(6) PRIMARY KEY",
        st.timedeltas(timedelta(hours=-838), timedelta(hours=838)).map(
            lambda span: f"sec_to_time({span.total_seconds():.6f})"
        ),
    ),
    _Random("k UUID PRIMARY KEY", st.uuids().map(_quoted)),
    _Random("k UUID, PRIMARY KEY (k DESC)", st.uuids(version=4).map(_quoted)),
    _Random("k INET6 PRIMARY KEY", st.ip_addresses(v=6).map(_quoted)),
    _Random("k INET4 PRIMARY KEY", st.ip_addresses(v=4).map(_quoted)),
    _Random("k VARBINARY(20) PRIMARY KEY", st.binary(max_size=20).map(lambda value: f"x'{value.hex()}'")),
    _Random("k VARCHAR(20) COLLATE utf8mb4_unicode_ci PRIMARY KEY", st.text("aAbBzäßß日-0", max_size=9).map(_quoted)),
    _Random("k VARCHAR(20) CHARACTER SET utf16le, PRIMARY KEY (k DESC)", st.text("aAbBzä-0", max_size=9).map(_quoted)),
    _Random(
        "t TINYINT, k DECIMAL(9,2), PRIMARY KEY (t DESC, k)",
        st.tuples(st.integers(0, 2), st.decimals(-(10**6), 10**6, places=2)).map(
            lambda pair: f"{pair[0]}, {pair[1]:f}"
        ),
    ),
]


@pytest.mark.parametrize("case", RANDOM, ids=lambda case: case.key)
def test_ranges_hold_every_key_once(h: Harness, case: _Random) -> None:
    if any(kind in case.key for kind in ("UUID", "INET")) and not h.features.uuid_type:
        pytest.skip("there is no such type")
    h.sql("SET SESSION sql_mode = ''")
    h.sql(f"CREATE TABLE events (ts DATETIME, {case.key})")

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.lists(case.values, min_size=1, max_size=40, unique=True), st.integers(2, 9))
    def check(values: list[str], pieces: int) -> None:
        with h.db.engine.connection() as connection:
            connection.exec_driver_sql("SET SESSION sql_mode = ''")
            connection.exec_driver_sql("DELETE FROM events")
            rows = ", ".join(f"('2026-01-01', {value})" for value in values)
            connection.exec_driver_sql(f"INSERT IGNORE INTO events VALUES {rows}".replace("%", "%%"))
            walk = _walk(connection)
            spans = split.key_ranges(connection, TableName("events"), walk, pieces)
            assert len(spans) <= pieces
            total = connection.exec_driver_sql("SELECT count(*) FROM events").scalar_one()
            assert sum(_sizes(connection, walk, [(span.start, span.end) for span in spans])) == total

    check()


def test_two_pieces_are_two_halves(h: Harness) -> None:
    h.sql("CREATE TABLE events (k BIGINT PRIMARY KEY, ts DATETIME)")
    h.sql(f"INSERT INTO events SELECT seq, '2026-01-01' FROM {numbers(20000)}")
    h.sql("ANALYZE TABLE events")
    with h.db.engine.connection() as connection:
        walk = _walk(connection)
        spans = split.key_ranges(connection, TableName("events"), walk, 2)
        sizes = _sizes(connection, walk, [(span.start, span.end) for span in spans])
    assert len(sizes) == 2
    assert sum(sizes) == 20_000
    assert min(sizes) >= 5_000


@pytest.mark.parametrize("order", ["", " DESC"])
def test_numbers_with_few_gaps_are_cut_without_a_guess(h: Harness, order: str) -> None:
    h.sql(f"CREATE TABLE events (k BIGINT, ts DATETIME, PRIMARY KEY (k{order}))")
    h.sql(f"INSERT INTO events SELECT seq * 3 DIV 2, '2026-01-01' FROM {numbers(20_000)}")
    with h.db.engine.connection() as connection, watched(h.db) as watch:
        walk = _walk(connection)
        watch.statements.clear()
        spans = split.key_ranges(connection, TableName("events"), walk, 4, rows=18_000)
        assert len(watch.statements) == 2
        sizes = _sizes(connection, walk, [(span.start, span.end) for span in spans])
    assert sum(sizes) == 20_000
    assert len(sizes) == 4 and min(sizes) >= 4_990


def test_a_table_that_has_emptied_since_its_statistics(h: Harness) -> None:
    _large(h, "k UUID PRIMARY KEY", "as_uuid(left(sha2(seq, 256), 32), '4')")
    h.sql("ALTER TABLE events STATS_AUTO_RECALC = 0")
    h.sql("DELETE FROM events")
    with h.db.engine.connection() as connection:
        target = _target(h, connection)
        assert h.db.engine.split(connection, target, PIECES) == []
        found = forecast.expiring(connection, target.declared, (h.now,), exact=False)
    assert found.counts == (0,)


@pytest.mark.parametrize("order", ["", " DESC"])
@pytest.mark.parametrize(("step", "is_looked_up"), [(2, False), (1_000_000_007, True)])
def test_where_a_batch_ends_is_looked_up_only_if_the_numbers_do_not_say_so(
    h: Harness, order: str, step: int, is_looked_up: bool
) -> None:
    h.sql(f"CREATE TABLE events (k BIGINT, ts DATETIME, PRIMARY KEY (k{order})) TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_guard = 'off', ttl_grace = '0 seconds')")
    old, new = (f"'{each:%Y-%m-%d %H:%M:%S}'" for each in (h.now - timedelta(days=2), h.now))
    h.sql(f"INSERT INTO events SELECT seq * {step}, if(seq % 10 = 0, {old}, {new}) FROM {numbers(5_000)}")
    h.sql("ANALYZE TABLE events")
    with watched(h.db) as watch:
        job = h.run_one()
    assert (job.status, job.counts.deleted) == ("finished", 500)
    assert h.rows("SELECT count(*) FROM events") == [(4_500,)]
    assert any(" OFFSET " in each and "`events`" in each for each in watch.statements) is is_looked_up
