"""Times are never guessed in the deleting direction: sentinels, text, zones and changes of clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings

from lapse.ddl import parse_expression
from lapse.engines.base import BoundPolicy
from lapse.model.interval import MINUTE, Interval
from lapse.model.policy import Policy
from lapse.model.table import TableName
from tests import walltimes
from tests.conformance.harness import Harness

TEXTS = {
    # (in a document, is it due at noon on 15 March 2026 in UTC?)
    1: ("2026-03-15T12:00:00Z", True),
    2: ("2026-03-15T12:00:01Z", False),
    3: ("2026-03-15T04:00:00-08:00", True),
    4: ("2026-03-15T11:00-08:00", False),
    5: ("2026-03-15 20:00:00+08:00", True),
    6: ("2026-03-15 20:00:01+0800", False),
    7: ("2026-03-15 20:00:00+08", True),
    8: ("2026-03-15 12:00:00", True),
    9: ("2026-03-15", True),
    10: ("2026-03-16", False),
    11: ("2024-02-30", False),
    12: ("2023-02-29T00:00:00Z", False),
    13: ("1812251200", False),
    14: ("1.2.3", False),
    15: ("10/11/12", False),
    16: ("2024-13-01", False),
    17: ("", False),
    18: ("never", False),
    19: ("0001-01-01T00:00:00Z", False),
    20: ("0000-00-00", False),
    21: ("9999-12-31", False),
    22: ("2024-01-01 24:00:00", False),
    23: ("2024-01-01 12:00:00 PST", False),
    24: ("2026-03-15T12:00:00.000000Z", True),
    25: ("2024-02-29", True),
}
DUE = sorted(number for number, (_, due) in TEXTS.items() if due)


def _documents(h: Harness, expression: str, **options: str) -> None:
    if not h.features.json_times:
        pytest.skip("there is no json_value")
    given = "".join(f", {name} = '{value}'" for name, value in options.items())
    h.sql(
        f"CREATE TABLE events (id INTEGER PRIMARY KEY, body {h.backend.text}, ts {h.backend.instant})"
        f" WITH (ttl_expiration_expression = '{expression}'{given})"
    )
    for number, (text, _) in TEXTS.items():
        h.sql(f"""INSERT INTO events (id, body) VALUES ({number}, '{{"at": "{text}"}}')""")


def test_text_is_a_time_in_iso_8601_only(h: Harness) -> None:
    _documents(h, "CAST(json_extract(body, ''$.at'') AS TIMESTAMP)", ttl_time_zone="UTC")
    assert h.run_one().counts.deleted == len(DUE)
    assert h.ids() == sorted(set(TEXTS) - set(DUE))


def test_text_that_says_never_is_not_replaced_by_another_time(h: Harness) -> None:
    _documents(h, "coalesce(CAST(json_extract(body, ''$.at'') AS TIMESTAMP), ts)", ttl_time_zone="UTC")
    h.sql(f"UPDATE events SET ts = {h.at(days=-1)} WHERE id IN (19, 21)")
    h.run()
    assert h.ids() == sorted(set(TEXTS) - set(DUE))


def test_a_pattern_with_an_escape(h: Harness) -> None:
    h.events(
        ttl="WITH (ttl_expiration_expression = 'CASE WHEN name LIKE ''keep\\_%'' THEN NULL ELSE ts END')",
        extra=", name VARCHAR(20)",
    )
    names = {1: "keep_1", 2: "keepX1", 3: "Keep_1", 4: "x"}
    for number, name in names.items():
        h.sql(f"INSERT INTO events (id, ts, name) VALUES ({number}, {h.at(days=-1)}, '{name}')")
    h.run()
    assert h.ids() == [1]


@pytest.mark.parametrize("rule", ["n + INTERVAL ''1 day''", "to_timestamp(n)", "coalesce(to_timestamp(n), ts)"])
def test_numbers_that_are_no_times_never_expire(h: Harness, rule: str) -> None:
    h.events(
        ttl=f"WITH (ttl_expiration_expression = '{rule}', ttl_time_format = 'unix')", extra=f", n {h.backend.bigint}"
    )
    now = int(h.now.timestamp())
    values = {1: now - 86_400, 2: 0, 3: -1, 4: 1, 5: 99_999_999, 6: now + 86_400, 7: now * 1000, 8: 2**62}
    for number, value in values.items():
        h.sql(f"INSERT INTO events (id, ts, n) VALUES ({number}, {h.at(days=-9)}, {value})")
    h.db.preview("events")
    h.run()
    assert h.ids() == [2, 3, 4, 5, 6, 7, 8]


def test_a_year_that_says_never(h: Harness) -> None:
    """By the column itself, and where an expression would fall back to another column."""
    for table, rule in (
        ("plain", "TTL = d + INTERVAL 1 DAY"),
        ("greater", "WITH (ttl_expiration_expression = 'greatest(d, ts)', ttl_time_zone = 'UTC')"),
        ("other", "WITH (ttl_expiration_expression = 'coalesce(d + INTERVAL ''1 day'', ts)', ttl_time_zone = 'UTC')"),
    ):
        zone = "" if "WITH" in rule else " WITH (ttl_time_zone = 'UTC')"
        h.sql(
            f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, ts {h.backend.instant}, d {h.backend.wall_clock})"
            f"{zone} {rule}"
        )
        for number, value in enumerate(("0001-01-01", "0999-12-31", "9999-12-31 23:59:59", "2024-01-01"), start=1):
            h.sql(f"INSERT INTO {table} (id, ts, d) VALUES ({number}, {h.at(days=-9)}, '{value}')")
        h.db.preview(table)
        h.run(table)
        assert h.ids(table) == [1, 2, 3], table


def test_two_thousand_years(h: Harness) -> None:
    h.sql(
        f"CREATE TABLE events (id INTEGER PRIMARY KEY, d {h.backend.wall_clock})"
        " WITH (ttl_time_zone = 'UTC', ttl_expiration_expression = 'd + INTERVAL ''1000 years 366000 days''')"
    )
    h.sql("INSERT INTO events VALUES (1, '2024-01-01'), (2, '1500-01-01')")
    h.db.preview("events")
    h.run()
    assert h.ids() == [1, 2]


def test_the_managed_column_is_in_utc_whatever_the_zone(h: Harness) -> None:
    h.clock.set(datetime.now(UTC))
    h.sql(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(20))"
        " WITH (ttl_expire_after = '5 minutes', ttl_time_zone = 'Asia/Tokyo')"
    )
    h.sql("INSERT INTO events (id, body) VALUES (1, 'a')")
    h.let_pass(minutes=4)
    h.run()
    assert h.ids() == [1]
    h.let_pass(minutes=2)
    h.run()
    assert h.ids() == []


def test_the_times_of_a_preview_are_expiry_times(h: Harness) -> None:
    h.events(ttl="TTL = ts + INTERVAL 1 DAY")
    h.insert((1, h.at(days=-3)), (2, h.at(days=-2)), (3, h.at()))
    (found,) = h.db.preview("events")
    assert found.survey.oldest == h.now - timedelta(days=2)
    assert found.survey.newest == h.now - timedelta(days=1)


def test_in_utc_whatever_the_zone(h: Harness) -> None:
    """AT TIME ZONE 'UTC' says which zone is meant, so none needs to be given."""
    h.sql(
        f"CREATE TABLE events (id INTEGER PRIMARY KEY, d {h.backend.wall_clock}) WITH"
        " (ttl_expiration_expression = '(d AT TIME ZONE ''UTC'') + INTERVAL ''1 hour''')"
    )
    h.sql("INSERT INTO events VALUES (1, '2026-03-15 11:00:00'), (2, '2026-03-15 11:00:01')")
    h.run()
    assert h.ids() == [2]


@pytest.fixture
def clocks(h: Harness) -> Harness:
    """One table for all zones: wall-clock times, minute by minute, around each change of clocks."""
    h.sql(f"CREATE TABLE clocks (id INTEGER PRIMARY KEY, at {h.backend.wall_clock})")
    walls = sorted({wall for place in walltimes.CHANGES for wall in _walls(place)})
    for start in range(0, len(walls), 500):
        rows = ", ".join(f"({start + i}, '{wall}')" for i, wall in enumerate(walls[start : start + 500]))
        h.sql(f"INSERT INTO clocks VALUES {rows}")
    return h


def _walls(place: tuple[str, datetime]) -> list[datetime]:
    around = place[1].astimezone(ZoneInfo(place[0])).replace(tzinfo=None)
    return [around + timedelta(minutes=11 * step) for step in range(-40, 40)]


def test_no_row_is_deleted_before_its_instant_in_any_zone(clocks: Harness) -> None:
    """The condition of a job against a model of its own, near changes of clocks."""
    engine = clocks.owner.engine

    with engine.connection() as connection, clocks.client() as client:
        table = engine.describe(connection, TableName("clocks"))
        stored = {row[0]: _moment(row[1]) for row in client.exec_driver_sql("SELECT id, at FROM clocks")}

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            walltimes.zones.filter(lambda place: place != walltimes.WHOLE_DAY), walltimes.minutes, walltimes.intervals
        )
        def check(place: tuple[str, datetime], offset: timedelta, interval: Interval) -> None:
            zone, cutoff = ZoneInfo(place[0]), place[1] + offset / 3
            policy = Policy(column="at", interval=interval, time_zone=place[0])
            condition = engine.condition(connection, BoundPolicy(table=table, policy=policy), cutoff).sql
            near = [number for number, wall in stored.items() if _is_near(wall, interval, cutoff)]
            gone = {row[0] for row in client.exec_driver_sql(f"SELECT id FROM clocks WHERE {condition}")}
            for number in near:
                expires = walltimes.true_expiry(stored[number], interval, zone)
                if number in gone:
                    assert expires <= cutoff, (stored[number], expires)
                elif not interval.months:
                    assert expires + timedelta(hours=3) > cutoff, (stored[number], expires)

        check()


def test_an_expression_gives_the_very_instant_in_any_zone(clocks: Harness) -> None:
    if not clocks.features.time_types:
        pytest.skip("expressions know no zones without time types")
    clocks.backend.load_zones({zone for zone, _ in walltimes.CHANGES})
    engine = clocks.owner.engine
    with engine.connection() as connection:
        table = engine.describe(connection, TableName("clocks"))
        for place in walltimes.CHANGES:
            zone = ZoneInfo(place[0])
            for interval in (Interval(), Interval(micros=90 * MINUTE), Interval(months=1, micros=MINUTE)):
                text = f"CASE WHEN id >= 0 THEN at + INTERVAL '{interval}' END"
                policy = Policy(expression=text, time_zone=place[0])
                declared = BoundPolicy(table=table, policy=policy, expression=parse_expression(text, columns=None))
                _check_instants(clocks, declared, place, interval, zone)


def _check_instants(
    h: Harness, declared: BoundPolicy, place: tuple[str, datetime], interval: Interval, zone: ZoneInfo
) -> None:
    walls = {wall: walltimes.true_expiry(wall, interval, zone) for wall in _walls(place)[::3]}
    engine = h.owner.engine
    with engine.connection() as connection, h.client() as client:
        for wall, expires in walls.items():
            for late, wanted in ((timedelta(), [(str(wall),)]), (timedelta(seconds=-1), [])):
                condition = engine.condition(connection, declared, expires + late).sql
                found = client.exec_driver_sql(
                    f"SELECT at FROM clocks WHERE at = '{wall}' AND {condition}".replace("%", "%%")
                ).all()
                assert [(str(_moment(row[0])),) for row in found] == wanted, (place, wall, expires, late)


def _moment(value: object) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))


def _is_near(wall: datetime, interval: Interval, cutoff: datetime) -> bool:
    return abs(interval.added_to(wall) - cutoff.replace(tzinfo=None)) < timedelta(days=2)
