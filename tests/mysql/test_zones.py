"""The server's zone: where times are stored without one, and it is not UTC, the policy has to say which is meant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lapse.errors import LapseError, Unsupported
from lapse.model.job import JobStatus
from tests.backends.mariadb import MariadbBackend, MariadbServer
from tests.conformance.harness import Harness

TABLE = "CREATE TABLE events (id INT PRIMARY KEY, ts TIMESTAMP NULL, d DATETIME NULL, day DATE NULL, body TEXT)"
WALL_CLOCKS = {
    "datetime": "TTL = d + INTERVAL 1 HOUR",
    "date": "TTL = day + INTERVAL 1 HOUR",
    "text": "WITH (ttl_expiration_expression = 'CAST(json_extract(body, ''$.at'') AS DATETIME)')",
    "expression": "WITH (ttl_expiration_expression = 'coalesce(ts, d)')",
}
INSTANTS = {
    "timestamp": "TTL = ts + INTERVAL 1 HOUR",
    "seconds": "TTL = id + INTERVAL 1 HOUR",
    "managed": "WITH (ttl_expire_after = '1 hour')",
    "said": "WITH (ttl_expiration_expression = 'd AT TIME ZONE ''UTC''')",
}


@pytest.fixture
def west(server: MariadbServer) -> Iterator[MariadbServer]:
    (before,) = server.execute("SELECT @@global.time_zone")[0]
    server.execute("SET GLOBAL time_zone = '-08:00'")
    yield server
    server.execute(f"SET GLOBAL time_zone = '{before}'")


@pytest.mark.parametrize("kind", WALL_CLOCKS)
def test_a_zone_is_not_guessed(h: Harness, west: MariadbServer, kind: str) -> None:
    with pytest.raises(Unsupported, match="-08:00") as refused:
        h.sql(f"{TABLE} {WALL_CLOCKS[kind]}")
    assert "ttl_time_zone = 'Etc/GMT+8'" in (refused.value.hint or "")
    given, rule = "WITH (ttl_time_zone = 'Etc/GMT+8'", WALL_CLOCKS[kind]
    h.sql(f"{TABLE} " + (rule.replace("WITH (", f"{given}, ") if "WITH" in rule else f"{given}) {rule}"))
    h.run()


@pytest.mark.parametrize("kind", INSTANTS)
def test_instants_need_no_zone(h: Harness, west: MariadbServer, kind: str) -> None:
    h.sql(f"{TABLE} {INSTANTS[kind]}")
    h.run()


def test_an_offset_needs_no_zones_in_the_server(h: Harness, west: MariadbServer) -> None:
    h.sql(f"{TABLE} WITH (ttl_expiration_expression = 'if(id > 0, d, NULL)', ttl_time_zone = 'Etc/GMT+8')")
    # Noon in UTC is 04:00 there.
    h.sql("INSERT INTO events (id, d) VALUES (1, '2026-03-15 04:00:00'), (2, '2026-03-15 04:00:01')")
    h.run()
    assert h.ids() == [2]


def test_a_zone_that_is_changed_later_blocks(h: Harness, server: MariadbServer) -> None:
    h.sql(f"{TABLE} TTL = d + INTERVAL 1 HOUR")
    h.sql("INSERT INTO events (id, d) VALUES (1, '2026-03-15 03:59:59')")
    server.execute("SET GLOBAL time_zone = '-08:00'")
    try:
        job = h.run_one()
        assert job.status is JobStatus.FAILED and "-08:00" in (job.reason or "")
        with pytest.raises(LapseError, match="-08:00"):
            h.db.preview("events")
        assert any("-08:00" in found.text for found in h.db.doctor())
        h.sql("ALTER TABLE events SET (ttl_time_zone = 'Etc/GMT+8')")
        assert h.run_one().counts.deleted == 0
        assert h.ids() == [1]
        h.advance(hours=1)
        assert h.run_one().counts.deleted == 1
    finally:
        server.execute("SET GLOBAL time_zone = 'SYSTEM'")


@pytest.mark.parametrize(
    ("zone", "named"), [("Europe/London", "ttl_time_zone = 'Area/City'"), ("Asia/Tokyo", "'Etc/GMT-9'")]
)
def test_the_zone_of_the_system(backend: MariadbBackend, zone: str, named: str) -> None:
    """A server in London that was started in winter calls its zone GMT."""
    server = backend.start(environment={"TZ": zone})
    try:
        other = MariadbBackend.__new__(type(backend))
        other.server = server
        with Harness.fresh(other) as h:
            with pytest.raises(Unsupported) as refused:
                h.sql(f"{TABLE} TTL = d + INTERVAL 1 HOUR")
            assert named in (refused.value.hint or "")
    finally:
        server.close()


@pytest.mark.parametrize("value", ["'0000-00-00'", "'2024-00-00'", "'0001-01-01'", "'9999-12-31'"])
@pytest.mark.parametrize("rule", ["d", "coalesce(d, ts)", "greatest(d, ts)", "if(d < current_timestamp, ts, NULL)"])
def test_what_says_never(h: Harness, server: MariadbServer, value: str, rule: str) -> None:
    h.sql(f"{TABLE} WITH (ttl_expiration_expression = '{rule}', ttl_time_zone = 'UTC')")
    name = h.url.rsplit("/", 1)[1]
    server.execute(
        "SET sql_mode = ''", f"INSERT INTO events (id, d, ts) VALUES (1, {value}, '2024-01-01')", database=name
    )
    h.db.preview("events")
    h.run()
    # A comparison sees a value as it is, where it is one.
    assert h.ids() == ([] if rule.startswith("if") and value == "'0001-01-01'" else [1])
