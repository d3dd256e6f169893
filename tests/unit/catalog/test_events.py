"""Events and notices as stored: an event lasts once, a notice is sent by one worker, ends come after beginnings."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from lapse.catalog import events
from lapse.model.notice import Event, EventKind, Notice, NoticeState
from tests.unit.runner.build import NOW, ago

HOOK, MAIL = "webhook", "mail"


def event(name: str = "e1", **fields: Any) -> Event:
    values: dict[str, Any] = {
        "id": name,
        "kind": EventKind.TABLE_LATE,
        "policy_id": 1,
        "table": "events",
        "code": None,
        "reason": "no job has finished in time",
        "began_at": NOW,
    }
    return Event(**values | fields)


def due(connection: Connection, now: datetime = NOW, limit: int = 9, *receivers: str) -> list[Notice]:
    return events.due_notices(connection, receivers or (HOOK, MAIL), now, limit)


def told(connection: Connection, receiver: str = HOOK, **fields: Any) -> Event:
    begun = event(**fields)
    events.begin_event(connection, begun)
    events.add_notice(connection, begun.id, receiver, NOW)
    return begun


def test_an_event_lasts_until_it_is_cleared(connection: Connection) -> None:
    first, second = event("b", began_at=ago(hours=1)), event("a", policy_id=None, kind=EventKind.CLOCK_ODD)
    for each in (second, first):
        events.begin_event(connection, each)
    assert events.lasting_events(connection) == [first, second]
    events.clear_event(connection, first, NOW, send_at=NOW)
    assert events.lasting_events(connection) == [second]


def test_two_of_a_kind_do_not_last_for_one_policy_at_the_same_time(connection: Connection) -> None:
    events.begin_event(connection, event("a"))
    events.begin_event(connection, event("b", policy_id=2))
    with pytest.raises(IntegrityError):
        events.begin_event(connection, event("c"))


def test_after_it_was_cleared_it_may_begin_again(connection: Connection) -> None:
    events.begin_event(connection, event("a"))
    events.clear_event(connection, event("a"), NOW, send_at=NOW)
    events.begin_event(connection, event("b"))
    assert [each.id for each in events.lasting_events(connection)] == ["b"]


def test_who_is_to_be_told_of_what(connection: Connection) -> None:
    told(connection)
    assert events.untold(connection, [HOOK]) == []
    assert events.untold(connection, [HOOK, MAIL]) == [("e1", MAIL)]
    events.begin_event(connection, event("e2", policy_id=2))
    assert set(events.untold(connection, [HOOK, MAIL])) == {("e1", MAIL), ("e2", MAIL), ("e2", HOOK)}
    events.clear_event(connection, event(), NOW, send_at=NOW)
    assert set(events.untold(connection, [HOOK, MAIL])) == {("e2", MAIL), ("e2", HOOK)}


def test_a_notice_is_due_from_its_time_on(connection: Connection) -> None:
    told(connection)
    assert due(connection, ago(seconds=1)) == []
    (notice,) = due(connection)
    assert (notice.event, notice.state, notice.receiver, notice.attempts) == (event(), NoticeState.BEGAN, HOOK, 0)
    assert notice.id == "e1.began"


def test_receivers_of_other_workers_are_left_to_them(connection: Connection) -> None:
    told(connection)
    assert due(connection, NOW, 9, MAIL) == []


def test_the_end_is_told_to_those_that_were_told_of_the_beginning_and_after_it(connection: Connection) -> None:
    begun = told(connection)
    events.clear_event(connection, begun, NOW, send_at=NOW)
    (beginning,) = due(connection)
    assert beginning.state is NoticeState.BEGAN
    events.finish_notice(connection, beginning, NOW)
    (end,) = due(connection)
    assert (end.state, end.receiver, end.event.cleared_at) == (NoticeState.CLEARED, HOOK, NOW)
    events.finish_notice(connection, end, NOW)
    assert due(connection) == []


def test_the_longest_waiting_comes_first_and_no_more_than_asked_for(connection: Connection) -> None:
    for number, minutes in enumerate((3, 9, 6)):
        begun = event(f"e{number}", policy_id=number)
        events.begin_event(connection, begun)
        events.add_notice(connection, begun.id, HOOK, ago(minutes=minutes))
    assert [notice.event.id for notice in due(connection, limit=2)] == ["e1", "e2"]


def test_one_claim_wins_and_keeps_others_away_for_a_while(connection: Connection) -> None:
    told(connection)
    (notice,) = due(connection)
    until = NOW + timedelta(minutes=1)
    assert events.claim_notice(connection, notice, until)
    assert not events.claim_notice(connection, notice, until)
    assert due(connection) == []
    (again,) = due(connection, until)
    assert again.attempts == 1


def test_one_that_could_not_be_delivered_is_sent_again_later(connection: Connection) -> None:
    told(connection)
    (notice,) = due(connection)
    events.claim_notice(connection, notice, NOW + timedelta(minutes=1))
    events.postpone_notice(connection, notice, "503", NOW + timedelta(minutes=5))
    assert due(connection, NOW + timedelta(minutes=4)) == []
    assert len(due(connection, NOW + timedelta(minutes=5))) == 1


def test_a_slow_worker_does_not_postpone_what_another_has_claimed_or_sent(connection: Connection) -> None:
    told(connection)
    (slow,) = due(connection)
    events.claim_notice(connection, slow, NOW)
    (quick,) = due(connection)
    events.claim_notice(connection, quick, NOW + timedelta(minutes=1))
    events.postpone_notice(connection, slow, "timeout", NOW + timedelta(days=1))
    assert len(due(connection, NOW + timedelta(minutes=1))) == 1
    events.finish_notice(connection, quick, NOW)
    events.postpone_notice(connection, quick, "timeout", NOW)
    assert due(connection, NOW + timedelta(days=2)) == []


def test_what_is_over_is_forgotten_with_its_notices_sent_or_not(connection: Connection) -> None:
    old, new = told(connection), told(connection, name="e2", policy_id=2)
    for each, at in ((old, ago(days=9)), (new, ago(days=1))):
        events.clear_event(connection, each, at, send_at=at)
    told(connection, name="e3", policy_id=3)
    events.forget_events(connection, cleared_before=ago(days=2))
    assert {notice.event.id for notice in due(connection)} == {"e2", "e3"}
