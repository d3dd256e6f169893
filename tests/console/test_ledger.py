"""The page of the ledger: who did what, newest first, page by page; it changes nothing."""

from __future__ import annotations

import re

import pytest

from lapse.app import Lapse
from lapse.console import pages
from tests.console.conftest import LOCAL, Visit
from tests.console.test_many import _csrf


def _entries(text: str) -> list[int]:
    return [int(number) for number in re.findall(r'data-label="Entry" class="mono">(\d+)<', text)]


def test_entries_page_by_page(database: Lapse, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ENTRIES", 2)
    for mode in ("fast", "whisper", "gentle"):
        database.set_setting("lapse_mode", mode)
    last = database.verify_ledger().head.sequence
    client, address, seen = visit(database), "/ledger", list[int]()
    while True:
        text = client.get(address).text
        seen += _entries(text)
        older = re.search(r'href="(/ledger\?before=\d+)">Older', text)
        if older is None:
            break
        address = older[1]
    assert seen == list(range(last, 0, -1))


@pytest.mark.parametrize("before", ["x", "-1", "9" * 30, "1;DROP"])
def test_no_such_page(database: Lapse, visit: Visit, before: str) -> None:
    assert visit(database).get("/ledger", params={"before": before}).status_code == 400


def test_what_was_done_in_the_console_is_the_visitors(database: Lapse, visit: Visit) -> None:
    client = visit(database, allow_actions=True)
    send = {"csrf": _csrf(client.get("/settings").text), "value": "fast"}
    assert client.post("/settings/lapse_mode", data=send, headers={"Origin": LOCAL}).status_code == 303
    done = database.ledger(limit=1)[0]
    assert (done.kind, done.program) == ("setting", "lapse console")
    text = client.get("/ledger").text
    assert "lapse_mode" in text and done.user in text


def test_what_a_name_says_is_no_markup(database: Lapse, visit: Visit) -> None:
    database.execute('CREATE TABLE "<b>x</b>" (id INTEGER PRIMARY KEY, ts TEXT) TTL = ts + INTERVAL 1 DAY')
    text = visit(database).get("/ledger").text
    assert "<b>x</b>" not in text and "&lt;b&gt;x" in text
