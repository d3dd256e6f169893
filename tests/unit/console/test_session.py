"""Cookies and form tokens: signed, good for a while, and worth nothing to anyone without the key."""

from __future__ import annotations

import pytest

from lapse.console.session import LIFETIME_SECONDS, Login, Signer, same_secret

NOW = 1_800_000_000.0


@pytest.fixture
def signer() -> Signer:
    return Signer("a token")


def test_a_cookie_is_read_back(signer: Signer) -> None:
    session = signer.start(NOW)
    assert signer.read(signer.cookie(session), NOW + 60) == session


def test_sessions_differ(signer: Signer) -> None:
    assert signer.start(NOW).id != signer.start(NOW).id


def test_a_cookie_is_good_on_every_worker_with_the_same_token(signer: Signer) -> None:
    session = signer.start(NOW)
    assert Signer("a token").read(signer.cookie(session), NOW) == session
    assert Signer("another token").read(signer.cookie(session), NOW) is None


def test_without_a_token_each_process_has_its_own_key() -> None:
    session = Signer(None).start(NOW)
    assert Signer(None).read(Signer(None).cookie(session), NOW) is None


@pytest.mark.parametrize(
    ("age", "is_good"), [(0, True), (LIFETIME_SECONDS - 1, True), (LIFETIME_SECONDS, False), (-60, False)]
)
def test_how_long_it_is_good(signer: Signer, age: float, is_good: bool) -> None:
    cookie = signer.cookie(signer.start(NOW))
    assert (signer.read(cookie, NOW + age) is not None) is is_good


@pytest.mark.parametrize("cookie", [None, "", ".", "..", "a.b.c", "ü.1.ß", "x" * 5000])
def test_what_is_no_cookie(signer: Signer, cookie: str | None) -> None:
    assert signer.read(cookie, NOW) is None


def test_a_changed_cookie_is_refused(signer: Signer) -> None:
    user, name, issued, signature = signer.cookie(signer.start(NOW, "ann")).split(".")
    assert signer.read(f"{user}.{name}.{issued}.{signature}", NOW) is not None
    assert signer.read(f"{user}.{name}.{int(issued) + 1}.{signature}", NOW) is None
    assert signer.read(f"{user}.{name}x.{issued}.{signature}", NOW) is None
    assert signer.read(f"{b'bob'.hex()}.{name}.{issued}.{signature}", NOW) is None
    assert signer.read(f"{user}.{name}.{issued}.{signature[:-1]}", NOW) is None


def test_a_form_token_belongs_to_its_session(signer: Signer) -> None:
    mine, other = signer.start(NOW), signer.start(NOW)
    token = signer.form_token(mine)
    assert signer.is_form_token(mine, token)
    assert not signer.is_form_token(other, token)
    assert not signer.is_form_token(mine, "")


def test_a_cookie_is_no_form_token(signer: Signer) -> None:
    session = Login(id="a", issued_at=int(NOW))
    assert not signer.is_form_token(session, signer.cookie(session).rpartition(".")[2])


@pytest.mark.parametrize(("given", "is_same"), [("secret", True), ("secre", False), ("", False), ("\udcff", False)])
def test_secrets_are_compared_whole(given: str, is_same: bool) -> None:
    assert same_secret(given, "secret") is is_same
