"""Who may come in, and what a browser cannot be tricked into."""

from __future__ import annotations

import base64
import re
from time import time

import pytest
from starlette.testclient import TestClient

from lapse.app import Lapse
from lapse.console import ConsoleOptions, parse_listen
from lapse.console.session import COOKIE, LIFETIME_SECONDS, Signer
from lapse.errors import InvalidValue, UsageError
from tests.console.conftest import LOCAL, REMOTE, TOKEN, Visit, policy_id

BEARER = {"Authorization": f"Bearer {TOKEN}"}


def _basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "ttl.example"])
def test_off_loopback_a_token_is_required(host: str) -> None:
    with pytest.raises(UsageError, match="token is required"):
        ConsoleOptions(host=host, port=1)
    with pytest.raises(UsageError, match="guessed"):
        ConsoleOptions(host=host, port=1, token="short")
    assert TOKEN not in repr(ConsoleOptions(host=host, port=1, token=TOKEN))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_on_loopback_it_is_not(host: str) -> None:
    assert ConsoleOptions(host=host, port=1).is_loopback


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("8321", ("127.0.0.1", 8321)),
        (":8321", ("0.0.0.0", 8321)),
        ("[::1]:9", ("::1", 9)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_listen(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", "host", "host:", "host:99999", "::1:80", "http://host:1", "a:b"])
def test_listen_refuses(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_listen(text)


def test_without_the_token_nothing_is_told(database: Lapse, visit: Visit) -> None:
    client = visit(database, token=TOKEN, allow_actions=True)
    for address in ("/", "/metrics", "/api/v1/tables", "/api/v1/openapi.json", "/static/console.css", "/nope"):
        response = client.get(address)
        assert response.status_code == 401, address
        assert "events" not in response.text
        assert response.headers["WWW-Authenticate"].startswith("Basic")
    assert client.post("/api/v1/tables/1/pause").status_code == 401
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("headers", [_basic("wrong"), {"Authorization": "Bearer wrong"}, {"Authorization": "Basic %%%"},
                                     {"Authorization": "Bearer"}, {"Cookie": f"{COOKIE}=a.1.b"}])  # fmt: skip
def test_wrong_proof(database: Lapse, visit: Visit, headers: dict[str, str]) -> None:
    assert visit(database, token=TOKEN).get("/", headers=headers).status_code == 401


@pytest.mark.parametrize("headers", [BEARER, _basic(TOKEN)])
def test_right_proof(database: Lapse, visit: Visit, headers: dict[str, str]) -> None:
    client = visit(database, token=TOKEN)
    assert client.get("/", headers=headers).status_code == 200
    assert client.get("/metrics", headers=headers).status_code == 200


def test_the_token_in_the_address_becomes_a_cookie(database: Lapse, visit: Visit) -> None:
    client = visit(database, token=TOKEN)
    assert client.get("/?token=wrong").status_code == 401
    response = client.get(f"/fleet?token={TOKEN}&x=1")
    assert (response.status_code, response.headers["location"]) == (303, "/fleet?x=1")
    cookie = response.headers["set-cookie"]
    assert all(flag in cookie for flag in ("HttpOnly", "SameSite=Lax", "Path=/", "Secure"))
    assert TOKEN not in cookie
    assert client.get("/fleet").status_code == 200
    # An address that looks like another site's stays on this one.
    assert client.get(f"{REMOTE}//evil.example/?token={TOKEN}").headers["location"].startswith("/evil.example")


def test_cookies_cannot_be_forged_and_end() -> None:
    signer, now = Signer(TOKEN), time()
    session = signer.start(now)
    cookie = signer.cookie(session)
    assert signer.read(cookie, now) == session
    assert Signer(TOKEN).read(cookie, now) == session
    assert Signer(TOKEN + "2").read(cookie, now) is None
    assert signer.read(cookie, now + LIFETIME_SECONDS + 1) is None
    assert signer.read(cookie.replace(session.id, "other"), now) is None
    for broken in (None, "", ".", "a.b.c", cookie[:-1], "é.1.2"):
        assert signer.read(broken, now) is None


def test_another_name_for_this_machine_is_refused(database: Lapse, visit: Visit) -> None:
    """A page elsewhere that has its own name point at 127.0.0.1 gets nothing."""
    client = visit(database)
    for host in ("evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", ""):
        assert client.get("/", headers={"Host": host}).status_code == 421, host
    for host in ("127.0.0.1:8321", "localhost:1", "[::1]:8321"):
        assert client.get("/", headers={"Host": host}).status_code == 200, host


def _form(client: TestClient, address: str) -> str:
    found = re.search('name="csrf" value="([^"]+)"', client.get(address).text)
    assert found is not None
    return found[1]


def test_actions_need_leave(database: Lapse, visit: Visit) -> None:
    client = visit(database)
    key = policy_id(database, "events")
    assert "action-" not in client.get(f"/tables/{key}").text
    assert client.get(f"/tables/{key}/pause").status_code == 409
    assert client.post(f"/tables/{key}/pause", headers={"Origin": LOCAL}).status_code == 403
    assert client.post(f"/api/v1/tables/{key}/pause", json={}).status_code == 403
    assert not database.policy("events").policy.pause


def test_a_form_of_our_own_is_obeyed(database: Lapse, visit: Visit) -> None:
    client = visit(database, allow_actions=True)
    key = policy_id(database, "events")
    for action, paused in (("pause", True), ("resume", False)):
        token = _form(client, f"/tables/{key}/{action}")
        done = client.post(f"/tables/{key}/{action}", data={"csrf": token}, headers={"Origin": LOCAL})
        assert (done.status_code, done.headers["location"]) == (303, f"/tables/{key}?said={action}")
        assert database.policy("events").policy.pause is paused
        assert 'role="status"' in client.get(done.headers["location"]).text


@pytest.mark.parametrize("proof", ["local", "cookie", "basic"])
def test_forgeries_are_refused(database: Lapse, visit: Visit, proof: str) -> None:
    token, origin = (None, LOCAL) if proof == "local" else (TOKEN, REMOTE)
    client = visit(database, token=token, allow_actions=True)
    if proof == "cookie":
        client.get(f"/?token={TOKEN}")
    headers = _basic(TOKEN) if proof == "basic" else {}
    key = policy_id(database, "events")
    client.headers.update(headers)
    good = _form(client, f"/tables/{key}/pause")
    address = f"/tables/{key}/pause"
    for origin_header in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {}):
        assert client.post(address, data={"csrf": good}, headers=origin_header).status_code == 403
        api = client.post(f"/api/v1{address}", headers={**origin_header, "Content-Type": "text/plain"})
        assert api.status_code == 403
    assert client.post(f"/api/v1{address}", json={}, headers={"Origin": "https://evil.example"}).status_code == 403
    for bad in ("", "0" * 64, good[:-1]):
        assert client.post(address, data={"csrf": bad}, headers={"Origin": origin}).status_code == 409
    assert client.post(address, headers={"Origin": origin}).status_code == 409
    assert not database.policy("events").policy.pause


def test_a_form_token_belongs_to_one_browser(database: Lapse, visit: Visit) -> None:
    client = visit(database, allow_actions=True)
    key = policy_id(database, "events")
    stolen = _form(client, f"/tables/{key}/pause")
    client.cookies.clear()
    refused = client.post(f"/tables/{key}/pause", data={"csrf": stolen}, headers={"Origin": LOCAL})
    assert refused.status_code == 409


def test_other_methods_do_nothing(database: Lapse, visit: Visit) -> None:
    client = visit(database, token=TOKEN, allow_actions=True)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        response = client.request(method, "/api/v1/tables/1/pause", headers=BEARER)
        assert response.status_code == 405
        assert "access-control-allow-origin" not in response.headers


def test_no_secret_is_shown(database: Lapse, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lapse, "url", property(lambda self: "postgresql+psycopg://me:hunter2secret@db:5432/app"))
    client = visit(database, token=TOKEN)
    for address in ("/", "/fleet", "/settings", "/api/v1/settings", "/metrics", "/nope"):
        text = client.get(address, headers=BEARER).text
        assert "hunter2secret" not in text, address
        assert TOKEN not in text
    assert "postgresql://me:***@db:5432/app" in client.get("/", headers=BEARER).text
