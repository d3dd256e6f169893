"""The page of holds: operators place and release after a question, all others look."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from lapse.app import Lapse
from tests.console.conftest import HOSTILE, LOCAL, Visit

OURS = {"Origin": LOCAL}


def _csrf(page: str) -> str:
    found = re.search('name="csrf" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def _place(client: TestClient, **given: str) -> int:
    page = client.get("/holds/new", params=given)
    assert page.status_code == 200, page.text
    return int(client.post("/holds", data={"csrf": _csrf(page.text), **given}, headers=OURS).status_code)


def test_a_hold_is_placed_and_released_after_a_question(database: Lapse, visit: Visit) -> None:
    client = visit(database, allow_actions=True)
    assert "No rows are held" in client.get("/holds").text
    given = {"table": "events", "where": "id = 3", "until": "2090-01-01T00:00:00Z", "reason": "case 12"}
    asked = client.get("/holds/new", params=given).text
    assert "id = 3" in asked and database.holds() == []
    assert _place(client, **given) == 303
    (hold,) = database.holds()
    assert (hold.table.name, hold.where, hold.reason) == ("events", "id = 3", "case 12")
    assert hold.until is not None and hold.until.year == 2090
    page = client.get("/holds?said=placed").text
    assert "case 12" in page and "in place" in page
    question = client.get(f"/holds/{hold.id}/release").text
    assert "Release the hold on events?" in question and "rows with id = 3" in question and 'href="/holds"' in question
    done = client.post(f"/holds/{hold.id}/release", data={"csrf": _csrf(question)}, headers=OURS)
    assert (done.status_code, database.holds()) == (303, [])
    assert f"Hold {hold.id} on" in client.get("/holds").text
    assert {entry.kind for entry in database.ledger(limit=2)} == {"held", "released"}


def test_without_leave_one_may_look(database: Lapse, visit: Visit) -> None:
    hold = database.hold("events", "id = 3")
    client = visit(database)
    page = client.get("/holds").text
    assert "id = 3" in page and "Release" not in page and "Place a hold" not in page
    assert client.get("/holds/new", params={"table": "events"}).status_code == 409
    assert client.get(f"/holds/{hold.id}/release").status_code == 409
    assert client.post(f"/holds/{hold.id}/release", headers=OURS).status_code == 403
    assert client.post("/holds", data={"table": "events"}, headers=OURS).status_code == 403
    assert [each.id for each in database.holds()] == [hold.id]


def test_a_form_of_another_site_or_session_is_refused(database: Lapse, visit: Visit) -> None:
    hold = database.hold("events")
    client = visit(database, allow_actions=True)
    csrf = _csrf(client.get(f"/holds/{hold.id}/release").text)
    address = f"/holds/{hold.id}/release"
    assert client.post(address, data={"csrf": csrf}, headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.post(address, data={"csrf": "wrong"}, headers=OURS).status_code == 409
    assert client.post("/holds", data={"csrf": "wrong", "table": "events"}, headers=OURS).status_code == 409
    assert [each.id for each in database.holds()] == [hold.id]


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"table": ""}, 400),
        ({"table": "events", "until": "tomorrow"}, 400),
        ({"table": "events", "until": "2090-01-01T00:00:00"}, 400),
    ],
)
def test_what_makes_no_sense_is_told_before_the_question(
    database: Lapse, visit: Visit, given: dict[str, str], status: int
) -> None:
    assert visit(database, allow_actions=True).get("/holds/new", params=given).status_code == status


def test_what_cannot_be_is_refused(database: Lapse, visit: Visit) -> None:
    client = visit(database, allow_actions=True)
    assert _place(client, table="nowhere") == 404
    assert _place(client, table="events", where="colour = 1") == 400
    assert client.get("/holds/999/release").status_code == 404
    assert database.holds() == []


def test_names_and_reasons_are_text(hostile: Lapse, visit: Visit) -> None:
    name = '"' + HOSTILE.replace('"', '""') + '"'
    hostile.hold(name, reason="<script>alert(1)</script>")
    client = visit(hostile, allow_actions=True)
    for address in ("/holds", "/holds/1/release"):
        assert "<script>alert" not in client.get(address).text
    assert "<script>alert" not in client.get("/holds/new", params={"table": HOSTILE, "where": HOSTILE}).text
