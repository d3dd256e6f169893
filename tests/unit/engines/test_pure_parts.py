"""What engines share and no server is needed for: buckets, zones of a server, endpoints, the column to come."""

from __future__ import annotations

import socket
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import make_url

from lapse.engines.base import BoundPolicy, Expiring, Survey
from lapse.engines.buckets import bucket, running_totals
from lapse.engines.endpoint import endpoint_of
from lapse.engines.planned import becomes_managed, changes_columns, refuse_taken_name, with_managed_column
from lapse.engines.zones import as_time_zone, block_guess, is_utc, refuse_guess
from lapse.errors import Blocked, PolicyConflict, ZoneMissing
from lapse.model import interval
from lapse.model.blocked import BlockCode
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Column, Table, TableKind, TableName
from tests.unit.runner.build import NOW

DAY = interval.parse("1 day", name="x")


def declared(policy: Policy | None = None, *columns: str) -> BoundPolicy:
    table = Table(
        name=TableName("events", "shop"),
        kind=TableKind.TABLE,
        columns=tuple(Column(name=name, type="datetime") for name in columns or ("at",)),
    )
    return BoundPolicy(table=table, policy=policy or Policy(column="at", interval=DAY))


# Buckets


@pytest.mark.parametrize("cutoffs", [[], [5], [2, 5], [1, 2, 3, 5, 8, 13, 21]])
def test_every_row_is_in_the_bucket_of_the_first_cutoff_it_meets(cutoffs: list[int]) -> None:
    sql = bucket([f"n <= {cutoff}" for cutoff in cutoffs])
    with closing(sqlite3.connect(":memory:")) as database:
        for number in range(25):
            (found,) = database.execute(f"SELECT {sql} FROM (SELECT {number} AS n)").fetchone()
            first = next((place for place, cutoff in enumerate(cutoffs) if number <= cutoff), len(cutoffs))
            assert found == first


def test_a_bucket_is_found_with_few_comparisons() -> None:
    sql = bucket([f"n <= {number}" for number in range(1000)])
    deepest = max(sql[: place + 1].count("CASE") - sql[: place + 1].count("END") for place in range(0, len(sql), 40))
    assert deepest <= 11


def test_totals_run_up_and_leave_out_what_has_not_expired() -> None:
    assert running_totals([(0, 3), (2, 4), (0, 1), (3, 99)], 3) == (4, 4, 8)
    assert running_totals([], 2) == (0, 0)


# Zones


@pytest.mark.parametrize("zone", ["UTC", "utc", "Etc/UTC", "GMT", "gmt+0", "Zulu", "+00:00", "-00:00", "+0", " UTC "])
def test_zones_that_are_utc(zone: str) -> None:
    assert is_utc(zone)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "+01:00", "GMT+1", "SYSTEM", "", "CET", "UTC+1"])
def test_zones_that_are_not(zone: str) -> None:
    assert not is_utc(zone)


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        ("+05:00", "Etc/GMT-5"),
        ("-08:00", "Etc/GMT+8"),
        ("+5", "Etc/GMT-5"),
        ("<-08>+08", "Etc/GMT+8"),
        ("<+05>-05", "Etc/GMT-5"),
        ("+05:30", None),
        ("+25:00", None),
        ("CEST (+01:00 in January, +02:00 in July)", None),
        ("../../etc/passwd", None),
    ],
)
def test_a_server_s_zone_as_a_parameter(zone: str, name: str | None) -> None:
    assert as_time_zone(zone) == name


def test_a_zone_that_could_be_meant_is_asked_for_at_declaration() -> None:
    refuse_guess(declared(), None)
    with pytest.raises(ZoneMissing) as refused:
        refuse_guess(declared(), "Europe/Berlin")
    assert refused.value.zone == "Europe/Berlin"
    assert refused.value.hint == (
        "ALTER TABLE shop.events SET (ttl_expiration_expression = 'at + INTERVAL ''1 day''', "
        "ttl_time_zone = 'Europe/Berlin'), or with 'UTC' if they are in UTC"
    )


def test_a_zone_without_a_name_is_for_the_person_to_name() -> None:
    with pytest.raises(ZoneMissing) as refused:
        refuse_guess(declared(Policy(expression="at")), "+05:30")
    assert refused.value.zone is None
    assert "ttl_time_zone = 'Area/City') with the server's region" in str(refused.value.hint)


def test_before_a_job_the_same_question_blocks_the_table() -> None:
    block_guess(declared(), None)
    with pytest.raises(Blocked) as blocked:
        block_guess(declared(), "+05:00")
    assert blocked.value.code is BlockCode.COLUMN_CHANGED
    assert blocked.value.hint == (
        "ALTER TABLE shop.events SET (ttl_time_zone = 'Etc/GMT-5'), which is +05:00, or with the server's region, "
        "or with 'UTC' if they are in UTC"
    )


# Endpoints


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://localhost:5432/app",
        "postgresql://127.0.0.1:5432/app",
        "postgresql://[::1]:5432/app",
        "postgresql:///app?host=/run/postgresql&port=5432",
        "mysql:///app",
    ],
)
def test_a_local_server_is_another_on_every_machine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = endpoint_of(make_url(url))
    monkeypatch.setattr(socket, "gethostname", lambda: "another-machine")
    assert endpoint_of(make_url(url)) != found


def test_a_server_elsewhere_is_the_same_from_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    url = make_url("postgresql://alice:secret@db.example:5432/app")
    found = endpoint_of(url)
    monkeypatch.setattr(socket, "gethostname", lambda: "another-machine")
    assert endpoint_of(url) == found == "db.example/5432/app/"


@pytest.mark.parametrize(
    "other", ["postgresql://db.example:5433/app", "postgresql://db2.example:5432/app", "postgresql://db.example:5432/b"]
)
def test_another_host_port_or_database_is_another_endpoint(other: str) -> None:
    assert endpoint_of(make_url(other)) != endpoint_of(make_url("postgresql://db.example:5432/app"))


def test_several_hosts_are_one_endpoint() -> None:
    url = make_url("postgresql:///app?host=a.example&host=b.example&port=5432&port=5433")
    assert endpoint_of(url) == "a.example,b.example/5432,5433/app/"


# The managed column before it is there


def test_a_policy_is_checked_against_the_table_as_it_will_be() -> None:
    planned = with_managed_column(declared(Policy(expire_after=DAY)), "timestamptz")
    assert [column.name for column in planned.table.columns] == ["at", MANAGED_COLUMN]
    assert with_managed_column(planned, "timestamptz") is planned
    plain = declared()
    assert with_managed_column(plain, "timestamptz") is plain


@pytest.mark.parametrize(
    ("policy", "previous", "becomes", "changes"),
    [
        (Policy(expire_after=DAY), None, True, True),
        (Policy(expire_after=DAY), Policy(expression="at"), True, True),
        (Policy(expire_after=DAY), Policy(expire_after=DAY), False, True),
        (Policy(expression="at"), Policy(expire_after=DAY), False, True),
        (Policy(expression="at"), None, False, False),
    ],
)
def test_when_a_column_is_added_or_changed(policy: Policy, previous: Any, becomes: bool, changes: bool) -> None:
    assert becomes_managed(declared(policy), previous) is becomes
    assert changes_columns(declared(policy), previous) is changes


def test_a_column_of_the_user_s_under_that_name_is_left_alone() -> None:
    taken = declared(Policy(expire_after=DAY), "at", MANAGED_COLUMN)
    with pytest.raises(PolicyConflict, match=f"already has a column {MANAGED_COLUMN}"):
        refuse_taken_name(taken, None)
    refuse_taken_name(taken, Policy(expire_after=DAY))
    refuse_taken_name(declared(Policy(expire_after=DAY)), None)


# Surveys


def test_the_size_of_expired_rows_is_their_share() -> None:
    assert Survey.scanned(10, 4, oldest=None, newest=None, size=1000).bytes == 400
    assert Survey.scanned(0, 0, oldest=None, newest=None, size=1000).bytes is None
    assert Survey.scanned(10, 4, oldest=None, newest=None, size=None).bytes is None


def test_counts_of_instants_as_a_survey_of_the_first() -> None:
    found = Expiring(counts=(4, 9), rows=10, bytes=1000, oldest=NOW, exact=False, method="sample", margin=2)
    survey = found.as_survey()
    assert (survey.expired, survey.bytes, survey.oldest, survey.exact, survey.margin) == (4, 400, NOW, False, 2)
    none = Expiring(counts=(0,), rows=10, bytes=1000, oldest=NOW, exact=True, method="scan").as_survey()
    assert (none.expired, none.oldest) == (0, None)
