"""A certificate states what the ledger and the tables say, and refuses to state what they do not."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import update

from lapse.catalog.schema import ledger
from lapse.errors import LapseError, Refused, UsageError
from tests.conformance.harness import Harness
from tests.conformance.test_ledger import rewrite


def _from(h: Harness) -> datetime:
    h.events()
    start = h.now
    h.advance(hours=1)
    return start


def test_what_was_promised_deleted_and_held(h: Harness) -> None:
    start = _from(h)
    h.insert(*((number, h.at(days=-9)) for number in range(1, 6)), (6, h.at(days=9)))
    h.owner.hold("events", "id = 5", reason="case 12")
    h.advance(minutes=1)
    h.run("events")
    h.sql("ALTER TABLE events SET (ttl_delete_within = '2 days')")
    stated = h.owner.certificate("events", since=start, until=h.now)
    (table,) = stated["tables"]
    assert (table["table"], table["deleted"], table["jobs"]) == ("events", 4, {"finished": 1})
    assert len(table["policies"]) == 2 and table["policies"][0]["to"] == table["policies"][1]["from"]
    assert [(held["where"], held["reason"]) for held in table["holds"]] == [("id = 5", "case 12")]
    now = table["now"]
    assert (now["rows"], now["expired"], now["overdue"], now["cannot_be_deleted"]) == (2, 0, 0, 0)
    assert stated["kept"] and stated["ledger"]["head"] == str(h.owner.verify_ledger().head)


def test_rows_that_should_be_gone_are_counted(h: Harness) -> None:
    start = _from(h)
    h.insert((1, h.at(days=-9)), (2, h.at(hours=-25)), (3, h.at(days=9)))
    stated = h.owner.certificate("events", since=start, until=h.now)
    now = stated["tables"][0]["now"]
    assert (now["expired"], now["overdue"]) == (2, 1)
    assert not stated["kept"]


def test_rows_that_cannot_be_deleted_are_counted(h: Harness) -> None:
    start = _from(h)
    h.sql(f"CREATE TABLE child (id {h.backend.bigint} PRIMARY KEY, event_id {h.backend.bigint} REFERENCES events (id),"
          " FOREIGN KEY (event_id) REFERENCES events (id))")  # fmt: skip
    h.insert((1, h.at(days=-9)), (2, h.at(days=-9)))
    h.sql("INSERT INTO child VALUES (1, 1)")
    h.run("events")
    stated = h.owner.certificate(since=start, until=h.now)
    now = stated["tables"][0]["now"]
    assert (now["overdue"], now["cannot_be_deleted"]) == (0, 1)
    assert stated["kept"]


def test_a_time_without_records_is_refused_with_the_range_there_is(h: Harness) -> None:
    start = _from(h)
    with pytest.raises(Refused, match=f"from {start:%Y-%m-%dT%H:%M}"):
        h.owner.certificate(since=start - timedelta(days=1), until=h.now)
    h.sql(f"CREATE TABLE late (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
    with pytest.raises(Refused, match=f"about table .*late of all that time: .* from {h.now:%Y-%m-%dT%H:%M}"):
        h.owner.certificate("late", since=start, until=h.now - timedelta(minutes=1))
    h.owner.certificate("late", since=start, until=h.now)


def test_what_else_is_refused(h: Harness) -> None:
    start = _from(h)
    with pytest.raises(UsageError, match="future"):
        h.owner.certificate(since=start, until=h.now + timedelta(days=1))
    with pytest.raises(UsageError, match="before it begins"):
        h.owner.certificate(since=h.now, until=start)
    with pytest.raises(LapseError, match="no entry about table"):
        h.owner.certificate("evnets", since=start, until=h.now)
    h.owner.verify_ledger()
    rewrite(h, update(ledger).where(ledger.c.sequence == 2).values(user_name="mallory"))
    with pytest.raises(Refused, match="entry 2 was changed"):
        h.owner.certificate(since=start, until=h.now)


def test_a_table_that_has_no_policy_any_more(h: Harness) -> None:
    start = _from(h)
    h.sql("DROP TABLE events")
    (table,) = h.owner.certificate("events", since=start, until=h.now)["tables"]
    assert table["now"] is None and table["policies"][0]["to"] is not None
