"""Cookies that prove a login, and the form tokens that belong to them. Nothing is stored: both are signed.

The key comes from the console's token, so that a cookie stays good over a restart and on every worker that has the same
token, and ends when the token is changed. With named users there is no such token: the key is this process's own.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

COOKIE = "lapse_session"
LIFETIME_SECONDS = 12 * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """`user` is the name of the user who logged in; empty where there is one token for all."""

    id: str
    issued_at: int
    user: str = ""


class Signer:
    def __init__(self, token: str | None) -> None:
        secret = token.encode() if token is not None else secrets.token_bytes(32)
        self._key = hmac.digest(secret, b"lapse console session", hashlib.sha256)

    def start(self, now: float, user: str = "") -> Login:
        return Login(id=secrets.token_urlsafe(16), issued_at=int(now), user=user)

    def cookie(self, session: Login) -> str:
        body = f"{session.user.encode().hex()}.{session.id}.{session.issued_at}"
        return f"{body}.{self._sign('cookie', body)}"

    def read(self, cookie: str | None, now: float) -> Login | None:
        """The session of a cookie; None when it is forged, broken or too old."""
        body, _, signature = (cookie or "").rpartition(".")
        if not _same(signature, self._sign("cookie", body)):
            return None
        rest, _, issued = body.rpartition(".")
        user, _, name = rest.partition(".")
        if not issued.isdigit() or not 0 <= now - int(issued) < LIFETIME_SECONDS:
            return None
        return Login(id=name, issued_at=int(issued), user=bytes.fromhex(user).decode())

    def form_token(self, session: Login) -> str:
        return self._sign("form", session.id)

    def is_form_token(self, session: Login, text: str) -> bool:
        return _same(text, self.form_token(session))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def same_secret(given: str, expected: str) -> bool:
    """Compared in constant time, and by digest so that not even the length leaks."""
    return hmac.compare_digest(
        hashlib.sha256(given.encode(errors="replace")).digest(), hashlib.sha256(expected.encode()).digest()
    )
