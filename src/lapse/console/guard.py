"""The door: who may come in, what a browser may be tricked into, and which headers every answer carries.

- Without a token only this machine is served, and only under a name of this machine: a web page elsewhere cannot reach
  the console by pointing a name of its own at 127.0.0.1.
- With a token, or a token for each named user, every visitor shows one: in the form of the login page or once as
  `?token=`, exchanged for a cookie, as `Authorization: Bearer`, or as the password of basic authentication. Wrong
  tokens are throttled by address. A user whose role is viewer may look, and nothing else.
- What changes something must come from the console's own pages, by `Origin`; a browser attaches cookies and basic
  credentials to requests of other sites, too. A bearer token it never attaches by itself.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from time import time
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lapse.console import login
from lapse.console.login import LOGIN, LOGOUT, Throttle
from lapse.console.options import ConsoleOptions
from lapse.console.session import COOKIE, LIFETIME_SECONDS, Login, Signer, same_secret
from lapse.console.users import Role, User, by_token

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""For probes; they tell nothing but yes or no."""
SAFE_METHODS = frozenset({"GET", "HEAD"})
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
JSON = "application/json"
MAX_FORM_BYTES = 4096
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
    """How a visitor came in."""

    LOCAL = "local"
    BEARER = "bearer"
    BASIC = "basic"
    COOKIE = "cookie"


@dataclass(frozen=True, kw_only=True, slots=True)
class Visitor:
    """`session` ties form tokens to a browser; `is_new` says that the browser does not have its cookie yet."""

    proof: Proof
    session: Login
    is_new: bool
    who: str = "?"
    """For the log and the ledger: the user's name and address; where there is one token for all, how it came in."""
    may_act: bool = False
    """Where the console was started with --allow-actions, and not for a user who may only look."""


ANYONE = User(name="", role=Role.OPERATOR, token_sha256="")
"""Who shows the one token that there is, or is on this machine where none is needed."""


class AccessGuard:
    """ASGI middleware; the application finds a Visitor in `request.state.visitor`."""

    def __init__(self, app: ASGIApp, options: ConsoleOptions, signer: Signer) -> None:
        self._app = app
        self._options = options
        self._signer = signer
        self._throttle = Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        visitor: Visitor | None
        response: Response | None
        if scope["method"] == "POST" and scope["path"] in (LOGIN, LOGOUT) and self._options.needs_login:
            visitor, response = await self._at_the_door(Request(scope, receive))
        else:
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

    async def _at_the_door(self, request: Request) -> tuple[Visitor | None, Response]:
        """The form of the login page, and the button that logs out."""
        if not _is_own_origin(request.headers):
            return None, login.page("This request does not come from the console's own pages.", 403)
        if request.url.path == LOGOUT:
            response = login.page("You are logged out.", 200)
            response.delete_cookie(COOKIE)
            return None, response
        wait = self._throttle.wait_seconds(_address(request))
        if wait:
            return None, _too_many(request, wait)
        body = (await request.body())[:MAX_FORM_BYTES].decode(errors="replace")
        given = dict(parse_qsl(body)).get("token", "")
        user = self._known(given)
        if user is None:
            self._guessed(request)
            return None, login.page("That is not a token of this console.")
        visitor = self._admitted(request, Proof.COOKIE, self._signer.start(time(), user.name), user, is_new=True)
        log.info("the console let %s in", visitor.who)
        return visitor, RedirectResponse("/", 303)

    def _guessed(self, request: HTTPConnection) -> None:
        self._throttle.failed(_address(request))
        log.warning("the console refused a wrong token from %s", _address(request))

    def _visitor(self, request: HTTPConnection) -> Visitor | None:
        session = self._signer.read(request.cookies.get(COOKIE), time())
        shown = self._shown(request, session)
        if shown is None:
            return None
        proof, user = shown
        if session is None or session.user != user.name:
            return self._admitted(request, proof, self._signer.start(time(), user.name), user, is_new=True)
        return self._admitted(request, proof, session, user, is_new=False)

    def _admitted(self, request: HTTPConnection, proof: Proof, session: Login, user: User, *, is_new: bool) -> Visitor:
        who = f"{_user(request)}{_address(request)} ({proof}, session {session.id[:6]})"
        return Visitor(
            proof=proof,
            session=session,
            is_new=is_new,
            who=f"{user.name} at {_address(request)}" if user.name else who,
            may_act=self._options.allow_actions and user.role is Role.OPERATOR,
        )

    def _known(self, token: str) -> User | None:
        """Whose token it is; without a name where there is one token for all."""
        if self._options.token is not None:
            return ANYONE if same_secret(token, self._options.token) else None
        return by_token(self._options.users, token)

    def _shown(self, request: HTTPConnection, session: Login | None) -> tuple[Proof, User] | None:
        if not self._options.needs_login:
            return (Proof.LOCAL, ANYONE) if _is_local(request.headers, self._options.host) else None
        if self._throttle.wait_seconds(_address(request)) and _shows_token(request):
            return None
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (user := self._known(value.strip())):
            return Proof.BEARER, user
        if scheme.lower() == "basic" and (user := self._known(_credentials(value)[1])):
            return Proof.BASIC, user
        given = request.query_params.get("token")
        if given is not None and (user := self._known(given)):
            return Proof.COOKIE, user
        owner = None if session is None else self._named(session.user)
        return None if owner is None else (Proof.COOKIE, owner)

    def _named(self, name: str) -> User | None:
        return next((user for user in (self._options.users or (ANYONE,)) if user.name == name), None)

    def _refusal(self, request: HTTPConnection, method: str, visitor: Visitor | None) -> Response | None:
        """What to answer instead; None lets the request through."""
        if visitor is None and not self._options.needs_login:
            return _told(request, "This console answers to a name of its own machine only.", 421)
        if visitor is None:
            wait = self._throttle.wait_seconds(_address(request)) if _shows_token(request) else 0.0
            if wait:
                return _too_many(request, wait)
            if _shows_token(request):
                self._guessed(request)
            elif _is_browser(request):
                return login.page()
            asks = {"WWW-Authenticate": 'Basic realm="Lapse", charset="UTF-8"'}
            return _told(request, "The token is missing or wrong.", 401, asks)
        if method in SAFE_METHODS:
            return _without_token(request) if "token" in request.query_params else None
        if not self._options.allow_actions:
            return _told(request, "This console is read-only: it was started without --allow-actions.", 403)
        if not visitor.may_act:
            return _told(request, "You may look and not act: your role is viewer.", 403)
        if visitor.proof is not Proof.BEARER and not _is_own_origin(request.headers):
            return _told(request, "This request does not come from the console's own pages.", 403)
        return None

    @staticmethod
    def _cookie_flags(request: HTTPConnection) -> str:
        # Lax, not Strict: the link with ?token= may come from a chat, and the redirect after it must carry the cookie.
        secure = "; Secure" if request.url.scheme == "https" else ""
        return f"Path=/; Max-Age={LIFETIME_SECONDS}; HttpOnly; SameSite=Lax{secure}"

    def _set_cookie(self, session: Login, request: HTTPConnection) -> str:
        return f"{COOKIE}={self._signer.cookie(session)}; {self._cookie_flags(request)}"


def _told(request: HTTPConnection, text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """A refusal, as JSON where the API was asked."""
    if _is_api(request):
        return JSONResponse({"error": text, "hint": None}, status, headers)
    return PlainTextResponse(f"{text}\n", status, headers)


def _too_many(request: HTTPConnection, wait: float) -> Response:
    text, headers = f"Too many wrong tokens: try again in {wait:.0f} s.", {"Retry-After": f"{wait + 1:.0f}"}
    if _is_browser(request):
        response = login.page(text, 429)
        response.headers.update(headers)
        return response
    return _told(request, text, 429, headers)


def _address(request: HTTPConnection) -> str:
    return request.client.host if request.client else "?"


def _user(request: HTTPConnection) -> str:
    """The name before the password of basic credentials, which proves nothing but tells people apart."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    name = _credentials(value)[0] if scheme.lower() == "basic" else ""
    return f"{name[:40]!r} at " if name else ""


def _shows_token(request: HTTPConnection) -> bool:
    return "authorization" in request.headers or "token" in request.query_params


def _is_browser(request: HTTPConnection) -> bool:
    return "text/html" in request.headers.get("accept", "") and not _is_api(request)


def _is_api(request: HTTPConnection) -> bool:
    """Of the only database, or of one of several."""
    return re.match(r"(/databases/[^/]+(/[^/]+)?)?/api/", request.url.path) is not None


def _is_local(headers: Mapping[str, str], host: str) -> bool:
    name = urlsplit(f"//{headers.get('host', '')}").hostname
    return name in LOCAL_NAMES or name == host


def _is_own_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    # No Origin: not a browser's form. JSON cannot be sent across sites without asking first, which is never granted.
    return headers.get("content-type", "").split(";")[0].strip().lower() == JSON


def _credentials(text: str) -> tuple[str, str]:
    """Name and password of basic credentials; any name will do."""
    try:
        name, _, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return "", ""
    return name, password


def _without_token(request: HTTPConnection) -> Response:
    """So that the token stays out of the address bar, the history and the referrer."""
    rest = [(name, value) for name, value in parse_qsl(request.url.query) if name != "token"]
    # A second slash in front would make it another site's address.
    path = "/" + request.url.path.lstrip("/\\")
    return RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
