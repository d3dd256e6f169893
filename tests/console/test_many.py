"""Two hundred policies: found, sorted, a page at a time, and refreshed for a few kilobytes."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.console.login import GUESSES, WINDOW_SECONDS, Throttle
from lapse.console.words import measure
from tests.console.conftest import LOCAL, REMOTE, TOKEN, Visit, policy_id

HTMX = {"HX-Request": "true", "Accept-Encoding": "gzip"}
MOST_BYTES = 20_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lapse]:
    path = tmp_path_factory.mktemp("many") / "app.db"
    with Lapse(f"sqlite:///{path}") as opened:
        for number in range(200):
            opened.execute(
                f"CREATE TABLE events_{number:03} (id INTEGER PRIMARY KEY, created_at TEXT)"
                " TTL = created_at + INTERVAL 30 DAY"
            )
        opened.pause("events_150")
        yield opened


def test_a_refresh_is_small(many: Lapse, visit: Visit) -> None:
    client = visit(many)
    with client.stream("GET", "/", headers=HTMX) as first:
        size = len(b"".join(first.iter_raw()))
    assert 0 < size <= MOST_BYTES
    mark = first.headers["X-Lapse-Mark"]
    same = client.get("/", headers=HTMX | {"X-Lapse-Mark": mark})
    if same.headers["X-Lapse-Mark"] == mark:  # a countdown may have changed by a minute in between
        assert (same.status_code, same.content) == (204, b"")


def test_search_sort_and_pages(many: Lapse, visit: Visit) -> None:
    client = visit(many)

    def names(address: str) -> list[str]:
        return re.findall(r'<bdi class="name">(events_\d+)</bdi></a><span', client.get(address).text)

    assert len(names("/")) == 25
    assert names("/?sort=table")[0] == "events_000"
    assert names("/?sort=table&page=8")[-1] == "events_199"
    assert names("/?page=999") == names("/?page=8")
    assert names("/?q=EVENTS_19") == [f"events_19{digit}" for digit in range(10)]
    assert names("/?q=paused") == ["events_150"]
    assert "No table matches" in client.get("/?q=nonsense").text
    assert "&lt;script&gt;" in client.get("/?q=<script>").text
    assert 'hx-get="/?q=events_1&amp;page=2"' in client.get("/?q=events_1&page=2").text


def test_a_bad_what_if_keeps_form_and_chart(database: Lapse, visit: Visit) -> None:
    address = f"/tables/{policy_id(database, 'events')}/forecast"
    response = visit(database).get(address, params={"ttl": "14 dayz"}, headers={"HX-Request": "true"})
    assert response.status_code == 400
    assert 'value="14 dayz"' in response.text
    assert "data-chart" in response.text
    assert 'role="alert"' in response.text


def _csrf(text: str) -> str:
    found = re.search('name="csrf" value="([^"]+)"', text)
    assert found is not None
    return found[1]


def test_settings_can_be_changed_where_actions_are_allowed(
    database: Lapse, visit: Visit, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lapse")
    logging.getLogger("lapse").propagate = True
    assert "<input" not in visit(database).get("/settings").text
    client = visit(database, allow_actions=True)
    token, origin = _csrf(client.get("/settings").text), {"Origin": LOCAL}
    send = {"csrf": token, "value": "fast"}
    assert client.post("/settings/lapse_mode", data=send, headers=origin).status_code == 303
    assert database.settings()["lapse_mode"] == "fast"
    assert client.post("/settings/lapse_mode", data=send | {"value": "wild"}, headers=origin).status_code == 400
    assert client.post("/settings/nope", data=send, headers=origin).status_code == 400
    assert client.post("/settings/lapse_mode", data={"value": "x"}, headers=origin).status_code == 409
    assert client.post("/settings/lapse_mode", data={"csrf": token, "reset": "1"}, headers=origin).status_code == 303
    assert database.settings()["lapse_mode"] != "fast"
    assert "asked to set lapse_mode to 'fast'" in caplog.text


def test_actions_are_logged_with_who_did_it(database: Lapse, visit: Visit, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lapse")
    logging.getLogger("lapse").propagate = True
    client = visit(database, token=TOKEN, allow_actions=True)
    number = policy_id(database, "events")
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert client.post(f"/api/v1/tables/{number}/pause", headers=bearer).status_code == 200
    assert re.search(r"console: testclient \(bearer, session \S+\) asked to pause table events", caplog.text)
    assert TOKEN not in caplog.text


def test_dialogs_have_numbers(database: Lapse, visit: Visit) -> None:
    number = policy_id(database, "events")
    text = visit(database, allow_actions=True).get(f"/tables/{number}/run").text
    assert "would delete 10,000 of 30,000 rows (33%)" in text


def test_the_login_page(database: Lapse, visit: Visit) -> None:
    client = visit(database, token=TOKEN)
    html = {"Accept": "text/html"}
    page = client.get("/", headers=html)
    assert (page.status_code, "WWW-Authenticate" in page.headers) == (401, False)
    assert 'action="/login"' in page.text
    assert "events" not in page.text
    origin = {"Origin": REMOTE}
    assert client.post("/login", data={"token": TOKEN}, headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.post("/login", data={"token": "wrong"}, headers=origin).status_code == 401
    inside = client.post("/login", data={"token": TOKEN}, headers=origin)
    assert (inside.status_code, inside.headers["location"]) == (303, "/")
    assert TOKEN not in inside.headers["set-cookie"]
    assert "Log out" in client.get("/", headers=html).text
    assert client.post("/logout", headers=origin).status_code == 200
    assert client.get("/", headers=html).status_code == 401


def test_guesses_are_throttled(database: Lapse, visit: Visit) -> None:
    client = visit(database, token=TOKEN)
    codes = [client.get("/", headers={"Authorization": f"Bearer {n}"}).status_code for n in range(GUESSES + 3)]
    assert codes == [401] * GUESSES + [429] * 3
    refused = client.get("/api/v1/tables", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (refused.status_code, set(refused.json())) == (429, {"error", "hint"})
    assert int(refused.headers["Retry-After"]) > 0
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    for _ in range(GUESSES):
        throttle.failed("a")
    assert (throttle.wait_seconds("a"), throttle.wait_seconds("b")) == (WINDOW_SECONDS, 0.0)
    now[0] = WINDOW_SECONDS
    assert throttle.wait_seconds("a") == 0.0


def test_errors_of_the_api_are_json(database: Lapse, visit: Visit) -> None:
    remote, local = visit(database, token=TOKEN), visit(database)
    for response in (
        remote.get("/api/v1/tables"),
        local.post("/api/v1/tables/1/pause"),
        local.get("/api/v1/jobs/99999999999999999999"),
        local.get("/api/v1/nope"),
        local.get("/api/v1/tables", headers={"Host": "evil.example"}),
    ):
        assert response.status_code in (401, 403, 404, 421)
        assert set(response.json()) == {"error", "hint"}
    assert local.get("/jobs/99999999999999999999").status_code == 404


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(4e9, " B", "3.7 GiB"), (2480.0, " sessions", "2.5 k sessions"), (90.0, " s", "1 min 30 s"), (3.0, "", "3")],
)
def test_gauges_are_read_by_people(value: float, unit: str, text: str) -> None:
    assert measure(value, unit).replace("\u00a0", " ") == text


def test_an_empty_console_shows_the_next_command(tmp_path: Path, visit: Visit) -> None:
    with Lapse(f"sqlite:///{tmp_path / 'new.db'}") as opened:
        text = visit(opened).get("/").text
    for command in ("lapse init URL", "lapse apply URL", "lapse worker URL", "lapse sql URL -c"):
        assert command in text
    # SQLite has no comments.
    assert "COMMENT" not in text


def test_a_table_in_its_grace_period_is_not_due(tmp_path: Path, visit: Visit) -> None:
    with Lapse(f"sqlite:///{tmp_path / 'new.db'}") as opened:
        opened.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT) TTL = `at` + INTERVAL 1 DAY")
        text = visit(opened).get("/").text
        assert "due now" not in text
        assert re.search(r'data-label="Next run"[^>]*>\s*<time[^>]*>in\W+(9|10)\W+min', text)


def test_a_job_that_has_ended_tells_where_its_time_went(tmp_path: Path, visit: Visit) -> None:
    with Lapse(f"sqlite:///{tmp_path / 'new.db'}") as opened:
        opened.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT) TTL = `at` + INTERVAL 1 DAY;"
            "INSERT INTO t (at) VALUES ('2020-01-01 00:00:00')"
        )
        (job,) = opened.run("t").jobs
        assert re.search(r"\d+\W+ms in statements, ", visit(opened).get(f"/jobs/{job.id}").text)
