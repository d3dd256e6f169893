"""Where the console listens and what it lets people do."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from lapse.console.users import User
from lapse.errors import InvalidValue, UsageError

TOKEN_VARIABLE = "LAPSE_CONSOLE_TOKEN"
MIN_TOKEN_LENGTH = 16
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsoleOptions:
    """Valid once built: visitors from other machines need the token, or that of a named user."""

    host: str = LOOPBACK
    port: int = 0
    token: str | None = field(default=None, repr=False)
    users: tuple[User, ...] = ()
    allow_actions: bool = False

    def __post_init__(self) -> None:
        if not self.needs_login and not self.is_loopback:
            raise UsageError(
                f"listening on {self.host} lets other machines in, so a token is required",
                hint=f"set {TOKEN_VARIABLE} (python -c 'import secrets; print(secrets.token_urlsafe())' makes one), "
                f"name users (--add-user), or listen on {LOOPBACK}",
            )
        if self.token is not None and len(self.token) < MIN_TOKEN_LENGTH:
            raise UsageError(f"the console's token is shorter than {MIN_TOKEN_LENGTH} characters, so it can be guessed")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise UsageError("the console's token has characters that cannot be sent in a header")

    @property
    def needs_login(self) -> bool:
        return self.token is not None or bool(self.users)

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[v6]:PORT`, `:PORT` for every interface, or `PORT` for this machine only."""
    match = re.fullmatch(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?P<colon>:))?(?P<port>\d{1,5})", text.strip())
    if match is None or int(match["port"]) > 65535:
        raise InvalidValue("--listen", text, "must be HOST:PORT, such as 127.0.0.1:8321")
    host = (match["host"] or "").strip("[]") or ("0.0.0.0" if match["colon"] else LOOPBACK)
    return host, int(match["port"])
