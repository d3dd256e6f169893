"""The door: who may come in, what a browser may be tricked into, and which headers every answer carries.

- Without a token only this machine is served, and only under a name of this machine: a web page elsewhere cannot reach
  the console by pointing a name of its own at 127.0.0.1.
- With a token everybody shows it: `Authorization: Bearer`, the password of basic authentication, `?token=` once, which
  is exchanged for a cookie.
- What changes something must come from the console's own pages, by `Origin`; a browser attaches cookies and basic
  credentials to requests of other sites, too. A bearer token it never attaches by itself.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from time import time
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lapse.console.options import Options
from lapse.console.session import COOKIE, LIFETIME_SECONDS, Session, Signer, same_secret

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""For probes; they tell nothing but yes or no."""
SAFE_METHODS = frozenset({"GET", "HEAD"})
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
JSON = "application/json"
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Proof(StrEnum):
    """How somebody came in."""

    LOCAL = "local"
    BEARER = "bearer"
    BASIC = "basic"
    COOKIE = "cookie"


@dataclass(frozen=True, kw_only=True, slots=True)
class Visitor:
    """`session` ties form tokens to a browser; `is_new` says that the browser does not have its cookie yet."""

    proof: Proof
    session: Session
    is_new: bool


class Guard:
    """ASGI middleware; the application finds a Visitor in `request.state.visitor`."""

    def __init__(self, app: ASGIApp, options: Options, signer: Signer) -> None:
        self._app = app
        self._options = options
        self._signer = signer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        visitor = None if scope["path"] in OPEN_PATHS else self._visitor(request)
        response = None if scope["path"] in OPEN_PATHS else self._refusal(request, scope["method"], visitor)
        if visitor is not None:
            scope.setdefault("state", {})["visitor"] = visitor

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                if visitor is not None and visitor.is_new and visitor.proof is not Proof.BEARER:
                    headers.append("Set-Cookie", self._set_cookie(visitor.session, request))
            await send(message)

        await (response or self._app)(scope, receive, send_with_headers)

    def _visitor(self, request: HTTPConnection) -> Visitor | None:
        proof = self._proof(request)
        if proof is None:
            return None
        session = self._signer.read(request.cookies.get(COOKIE), time())
        return Visitor(proof=proof, session=session or self._signer.start(time()), is_new=session is None)

    def _proof(self, request: HTTPConnection) -> Proof | None:
        token = self._options.token
        if token is None:
            return Proof.LOCAL if _is_local(request.headers, self._options.host) else None
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same_secret(value.strip(), token):
            return Proof.BEARER
        if scheme.lower() == "basic" and same_secret(_password(value), token):
            return Proof.BASIC
        given = request.query_params.get("token")
        if given is not None and same_secret(given, token):
            return Proof.COOKIE
        return Proof.COOKIE if self._signer.read(request.cookies.get(COOKIE), time()) else None

    def _refusal(self, request: HTTPConnection, method: str, visitor: Visitor | None) -> Response | None:
        """What to answer instead; None lets the request through."""
        if visitor is None and self._options.token is None:
            return PlainTextResponse("This console answers to a name of its own machine only.\n", 421)
        if visitor is None:
            log.warning("the console refused a visitor from %s", request.client.host if request.client else "?")
            return PlainTextResponse(
                "The token is missing or wrong.\n", 401, {"WWW-Authenticate": 'Basic realm="Lapse", charset="UTF-8"'}
            )
        if method in SAFE_METHODS:
            return _without_token(request) if "token" in request.query_params else None
        if not self._options.allow_actions:
            return PlainTextResponse("This console only looks: it was started without --allow-actions.\n", 403)
        if visitor.proof is not Proof.BEARER and not _is_own_origin(request.headers):
            return PlainTextResponse("This request does not come from the console's own pages.\n", 403)
        return None

    @staticmethod
    def _cookie_flags(request: HTTPConnection) -> str:
        # Lax, not Strict: the link with ?token= may come from a chat, and the redirect after it must carry the cookie.
        secure = "; Secure" if request.url.scheme == "https" else ""
        return f"Path=/; Max-Age={LIFETIME_SECONDS}; HttpOnly; SameSite=Lax{secure}"

    def _set_cookie(self, session: Session, request: HTTPConnection) -> str:
        return f"{COOKIE}={self._signer.cookie(session)}; {self._cookie_flags(request)}"


def _is_local(headers: Mapping[str, str], host: str) -> bool:
    name = urlsplit(f"//{headers.get('host', '')}").hostname
    return name in LOCAL_NAMES or name == host


def _is_own_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    # No Origin: not a browser's form. JSON cannot be sent across sites without asking first, which is never granted.
    return headers.get("content-type", "").split(";")[0].strip().lower() == JSON


def _password(credentials: str) -> str:
    """The password of basic credentials; any user name will do."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def _without_token(request: HTTPConnection) -> Response:
    """So that the token stays out of the address bar, the history and the referrer."""
    rest = [(name, value) for name, value in parse_qsl(request.url.query) if name != "token"]
    # A second slash in front would make it another site's address.
    path = "/" + request.url.path.lstrip("/\\")
    return RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
