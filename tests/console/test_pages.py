"""Every page, whole and as a live part, over ordinary and hostile data."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from lapse.app import Lapse
from lapse.catalog.schema import job as job_table
from lapse.console.guard import SECURITY_HEADERS
from tests.console.conftest import HOSTILE, Visit, policy_id

HTMX = {"HX-Request": "true"}
VOID = {"meta", "link", "img", "input", "br", "rect", "path", "progress"}


class Markup(HTMLParser):
    """Collects what a strict Content-Security-Policy forbids, what a label is missing from, and duplicate ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.text = ""
        self._ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script" and not (given.get("src") or "").startswith("/static/"):
            self.problems.append("inline or foreign script")
        if tag == "style" or "style" in given or any(name.startswith(("on", "hx-on")) for name in given):
            self.problems.append(f"inline style or handler in <{tag}>")
        if tag == "img" and "alt" not in given:
            self.problems.append("image without alt")
        for name in ("src", "href", "action", "hx-get"):
            if (given.get(name) or "/").startswith(("http:", "https:", "//", "javascript:")):
                self.problems.append(f"foreign address {given[name]}")
        if given.get("id") in self._ids:
            self.problems.append(f"id {given['id']} twice")
        self._ids.add(given.get("id") or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def _addresses(database: Lapse) -> list[str]:
    stored = database.policies()[0]
    job = database.history(limit=1)[0]
    return [
        "/", "/jobs", "/fleet", "/ledger", "/settings", f"/tables/{stored.id}", f"/tables/{stored.id}/preview",
        f"/jobs/{job.id}", f"/tables/{stored.id}/pause", f"/jobs/{job.id}/cancel",
    ]  # fmt: skip


def _check(client: TestClient, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200, (address, response.text)
    markup = Markup(response.text)
    assert markup.problems == [], address
    for name, value in SECURITY_HEADERS.items():
        assert response.headers[name] == value
    assert "unsafe" not in response.headers["Content-Security-Policy"]
    assert response.headers["Cache-Control"] == "no-store"
    assert len(re.findall("<main", response.text)) == 1
    assert '<html lang="en">' in response.text
    assert len(re.findall("<h1", response.text)) == (0 if "confirm-page" in response.text else 1), address
    return str(response.text)


def test_every_page(database: Lapse, visit: Visit) -> None:
    client = visit(database, allow_actions=True)
    for address in _addresses(database):
        _check(client, address)
        part = client.get(address, headers=HTMX)
        assert part.status_code == 200
        assert "<html" not in part.text
        assert Markup(part.text).problems == []
        assert part.headers["Vary"] == "HX-Request"


def test_overview_tells_how_policies_do(database: Lapse, visit: Visit) -> None:
    text = Markup(visit(database).get("/").text).text
    for words in ("audit_log", "Late", "Blocked", "no column expires_at", "12 held", "ttl_pause is on", "due now"):
        assert words in text
    # What needs attention comes first.
    assert text.index("password_resets") < text.index("audit_log") < text.index("events")


def test_table_page_speaks_every_dialect(database: Lapse, visit: Visit) -> None:
    page = visit(database).get(f"/tables/{policy_id(database, 'audit_log')}").text
    text = Markup(page).text
    assert "ALTER TABLE `audit_log` TTL = `written_at` + INTERVAL 90 DAY" in text
    assert "ttl_expiration_expression" in text
    assert "data-chart" in page
    assert "has no words for it" in text


def test_a_job_can_be_looked_into(database: Lapse, visit: Visit) -> None:
    client = visit(database)
    database.execute("ALTER TABLE events RESET (ttl_delete_rate_limit, ttl_delete_batch_size)")
    [job] = database.run("events").jobs
    text = Markup(client.get(f"/jobs/{job.id}").text).text
    assert "10,000" in text
    assert "row id order" in text
    assert "Policy version" in text


def test_preview_counts_and_changes_nothing(database: Lapse, visit: Visit) -> None:
    client = visit(database)
    text = Markup(client.get(f"/tables/{policy_id(database, 'events')}/preview", headers=HTMX).text).text
    assert "10,000 of 30,000 rows would go" in " ".join(text.split())
    assert database.preview("events")[0].survey.expired == 10_000


def test_hostile_names_are_only_names(hostile: Lapse, visit: Visit) -> None:
    client = visit(hostile, allow_actions=True)
    for address in _addresses(hostile):
        page = _check(client, address)
        assert "<script>alert" not in page
        assert "<img src=x" not in page
    assert HOSTILE in Markup(client.get("/").text).text
    token = re.search('name="csrf" value="([^"]+)"', client.get(f"/tables/{hostile.policies()[0].id}/pause").text)
    assert token is not None
    moved = client.post(
        f"/tables/{hostile.policies()[0].id}/pause",
        data={"csrf": token[1]},
        headers={"Origin": "http://127.0.0.1:8321"},
    )
    assert moved.status_code == 303
    assert f"{HOSTILE} is paused." in Markup(client.get(moved.headers["location"]).text).text
    assert hostile.policies()[0].policy.pause


def test_nothing_declared_is_said_kindly(tmp_path: Path, visit: Visit) -> None:
    with Lapse(f"sqlite:///{tmp_path / 'empty.db'}") as empty:
        client = visit(empty)
        for address in ("/", "/jobs", "/fleet", "/settings"):
            assert client.get(address).status_code == 200, address
        assert "No table has a TTL policy yet" in client.get("/").text
        assert client.get("/api/v1/tables").json() == client.get("/api/v1/history").json() == []
        assert client.get("/metrics").status_code == 200


@pytest.mark.parametrize(
    "address", ["/nope", "/tables/999", "/jobs/999", "/tables/1/explode", "/tables/x", "/static/nope"]
)
def test_what_is_not_there_is_404(database: Lapse, visit: Visit, address: str) -> None:
    response = visit(database, allow_actions=True).get(address)
    assert response.status_code == 404
    assert Markup(response.text).problems == []


def test_a_database_that_is_away(database: Lapse, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    from lapse.errors import DatabaseUnavailable

    client = visit(database)

    def fail(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("cannot reach postgresql://me:hunter2secret@db/app")

    monkeypatch.setattr(database, "clock", fail)
    monkeypatch.setattr(database, "observe", fail)
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 503
    page = client.get("/")
    assert page.status_code == 503
    assert "hunter2secret" not in page.text
    assert "lapse_ttl_database_up 0.0" in client.get("/metrics").text
    assert client.get("/api/v1/overview").json() == {"error": "cannot reach postgresql://me:***@db/app", "hint": None}


def test_an_error_nobody_foresaw(database: Lapse, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    client = visit(database)
    monkeypatch.setattr(database, "settings", lambda: 1 // 0)
    response = client.get("/settings")
    assert response.status_code == 500
    assert "ZeroDivision" not in response.text
    assert response.headers["Content-Security-Policy"]


def test_vendored_files_keep_their_licences(database: Lapse, visit: Visit) -> None:
    import lapse.console.application as application

    vendored = {path.name.split("-")[0].split(".")[0] for path in (application.STATIC / "vendor").iterdir()}
    for name in vendored:
        assert "ermission" in (application.STATIC / "vendor" / f"{name}.LICENSE.txt").read_text(encoding="utf-8")
    client = visit(database)
    for source in re.findall(r'(?:src|href)="(/static/[^"]+)"', client.get("/").text):
        assert client.get(source).status_code == 200, source


def test_the_forecast_is_drawn(database: Lapse, visit: Visit) -> None:
    """It is asked for apart from the page, and again for another TTL."""
    key = policy_id(database, "events")
    client = visit(database)
    assert f'hx-get="/tables/{key}/forecast" hx-trigger="load"' in client.get(f"/tables/{key}").text
    page = _check(client, f"/tables/{key}/forecast")
    assert "next 30 days" in page
    assert "Steady state" in Markup(_check(client, f"/tables/{key}/forecast?ttl=14+days")).text
    assert client.get(f"/tables/{key}/forecast?ttl=soon").status_code == 400


def test_a_first_run_that_is_held_can_be_confirmed(tmp_path: Path, visit: Visit) -> None:
    with Lapse(f"sqlite:///{tmp_path / 'held.db'}") as opened:
        opened.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT) TTL = at + INTERVAL 1 DAY")
        opened.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000)"
            " INSERT INTO t SELECT i, '2024-01-01 00:00:00' FROM n"
        )
        assert opened.run().jobs == ()
        client = visit(opened, allow_actions=True)
        page = client.get("/tables/1").text
        assert "Confirm first run" in page
        assert "Blocked" in page
        assert client.post("/api/v1/tables/1/confirm", json={}).status_code == 200
        assert opened.run().deleted == 12_000


@pytest.mark.parametrize(("status", "words"), [("finished", "partition dropped"), ("failed", "partition drop")])
def test_a_partition_drop_is_called_one(database: Lapse, visit: Visit, status: str, words: str) -> None:
    job = database.history(limit=1)[0]
    with database.catalog.writing() as connection:
        connection.execute(
            update(job_table).where(job_table.c.job_id == job.id).values(path_kind="partition", status=status)
        )
    client = visit(database)
    for address in ("/jobs", f"/jobs/{job.id}"):
        text = client.get(address).text
        assert re.search(rf">{words}[ <]", text), address
        assert not re.search(r">partition[ <]", text.replace(f">{words}", ""))
