"""Named users: each has a token and a role, and what they do carries their name."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from lapse.app import Lapse
from lapse.console import ConsoleOptions
from lapse.console.application import build
from lapse.console.session import COOKIE
from lapse.console.users import Access, Role, User, add, by_token, read
from lapse.errors import InvalidValue, UsageError
from tests.console.conftest import REMOTE, TOKEN, policy_id

VIEWER = f"\nrole = 'viewer'\ntoken_sha256 = '{'0' * 64}'\n"


def _csrf(page: str) -> str:
    found = re.search('name="csrf" value="([^"]+)"', page)
    assert found is not None
    return found[1]


class Staff:
    """A console with the users `anna`, who may act, and `vic`, who may look."""

    def __init__(self, database: Lapse, file: Path) -> None:
        self.tokens = {"anna": add(file, "anna", Role.OPERATOR), "vic": add(file, "vic", Role.VIEWER)}
        options = ConsoleOptions(host="0.0.0.0", port=8321, users=read(file), allow_actions=True)
        self._app = build(database, database.metrics(), options)

    def client(self) -> TestClient:
        return TestClient(self._app, base_url=REMOTE, follow_redirects=False, raise_server_exceptions=False)

    def logged_in(self, name: str) -> TestClient:
        client = self.client()
        done = client.post("/login", data={"token": self.tokens[name]}, headers={"Origin": REMOTE})
        assert (done.status_code, done.headers["location"]) == (303, "/")
        return client

    def bearer(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[name]}"}


@pytest.fixture
def staff(database: Lapse, tmp_path: Path) -> Staff:
    return Staff(database, tmp_path / "users.toml")


def test_an_operator_acts_and_the_log_and_the_ledger_name_them(
    database: Lapse, staff: Staff, caplog: pytest.LogCaptureFixture
) -> None:
    key = policy_id(database, "events")
    with caplog.at_level(logging.INFO, logger="lapse.console"):
        done = staff.client().post(f"/api/v1/tables/{key}/pause", headers=staff.bearer("anna"))
    assert done.status_code == 200 and database.policy("events").policy.pause
    assert "anna at testclient asked to pause table" in caplog.text
    assert any(entry.user.startswith("anna at ") for entry in database.ledger(limit=3))
    assert staff.tokens["anna"] not in caplog.text


def test_a_hold_carries_the_name_of_the_user_who_placed_and_released_it(database: Lapse, staff: Staff) -> None:
    """Not that of the process that runs the console."""
    anna = staff.logged_in("anna")
    given = {"table": "events", "where": "id = 1", "until": "", "reason": "case 12"}
    form = given | {"csrf": _csrf(anna.get("/holds/new", params=given).text)}
    assert anna.post("/holds", data=form, headers={"Origin": REMOTE}).status_code == 303
    (hold,) = database.holds()
    assert str(hold.placed_by).startswith("anna at ")
    assert '<td data-label="By"><bdi>anna at ' in anna.get("/holds").text
    form = {"csrf": _csrf(anna.get(f"/holds/{hold.id}/release").text)}
    assert anna.post(f"/holds/{hold.id}/release", data=form, headers={"Origin": REMOTE}).status_code == 303
    (ended,) = database.holds(ended=True)
    assert str(ended.released_by).startswith("anna at ")
    assert "by <bdi>anna at " in anna.get("/holds").text
    assert [each.user.split()[0] for each in database.ledger(limit=2)] == ["anna", "anna"]


def test_a_viewer_looks_and_is_offered_nothing(database: Lapse, staff: Staff) -> None:
    key = policy_id(database, "events")
    viewer, operator = staff.logged_in("vic"), staff.logged_in("anna")
    assert f"/tables/{key}/pause" in operator.get(f"/tables/{key}").text
    page = viewer.get(f"/tables/{key}").text
    assert f"/tables/{key}/pause" not in page and "read-only" in page and "Log out vic" in page
    assert viewer.get(f"/tables/{key}/pause").status_code == 409
    for address in (f"/tables/{key}/pause", "/settings/tidb_ttl_job_enable", f"/api/v1/tables/{key}/pause"):
        assert viewer.post(address, headers={"Origin": REMOTE}).status_code == 403
    assert staff.client().post(f"/api/v1/tables/{key}/pause", headers=staff.bearer("vic")).status_code == 403
    assert not database.policy("events").policy.pause


def test_a_cookie_is_of_one_user_and_logging_out_ends_it(staff: Staff) -> None:
    viewer = staff.logged_in("vic")
    cookie = viewer.cookies[COOKIE]
    forged = cookie.replace(b"vic".hex(), b"anna".hex())
    assert forged != cookie
    assert staff.client().get("/", headers={"Cookie": f"{COOKIE}={forged}"}).status_code == 401
    # Another user's token on the same browser is that user, not the one of the cookie.
    assert "Log out anna" in viewer.get("/", headers=staff.bearer("anna")).text
    viewer.post("/logout", headers={"Origin": REMOTE})
    assert viewer.get("/", headers={"Accept": "text/html"}).status_code == 401


def test_guesses_are_throttled(staff: Staff) -> None:
    client = staff.client()
    codes = [client.get("/", headers={"Authorization": f"Bearer wrong-{i}"}).status_code for i in range(12)]
    assert codes == [401] * 10 + [429] * 2
    assert client.get("/", headers=staff.bearer("anna")).status_code == 429


def test_the_file_keeps_no_token_and_is_its_owners(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    token = add(file, "anna@example.com", Role.OPERATOR)
    assert token not in file.read_text() and file.stat().st_mode & 0o077 == 0
    assert by_token(read(file), token) == read(file)[0]
    assert by_token(read(file), "") is None
    assert read(file)[0].token_sha256 not in repr(read(file))
    with pytest.raises(UsageError, match="already"):
        add(file, "anna@example.com", Role.VIEWER)
    with pytest.raises(InvalidValue, match="user"):
        add(file, 'x"]\n[users.root', Role.VIEWER)
    assert len(read(file)) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no \\[users"),
        ("nonsense", "cannot be read"),
        ("[users]", "no \\[users"),
        ("[users.anna]\nrole = 'viewer'", "nothing else"),
        (f"[users.anna]\nrole = 'admin'\ntoken_sha256 = '{'0' * 64}'", "viewer, operator"),
        ("[users.anna]\nrole = 'viewer'\ntoken_sha256 = 'secret'", "64 digits"),
        (f"[users.a]{VIEWER}[users.b]{VIEWER}", "same"),
        (f"extra = 1\n[users.a]{VIEWER}", "no \\[users"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "users.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        read(file)


def test_one_token_or_users_not_both(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not both"):
        Access.of(TOKEN, tmp_path / "users.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        Access.of(None, tmp_path / "nowhere.toml")
    user = User(name="a", role=Role.VIEWER, token_sha256="0" * 64)
    assert ConsoleOptions(host="0.0.0.0", port=1, users=(user,)).needs_login
