"""Passwords in URLs, kept out of everything that is shown."""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
_USERINFO = re.compile(r"(?P<before>//[^\s/:@]*:)(?P<password>[^\s/]*)@")
_IN_QUERY = re.compile(r"(?P<before>[?&](?:password|passwd|pwd|sslpassword)=)(?P<password>[^&\s]+)", re.IGNORECASE)


def mask(text: str, *urls: str | None) -> str:
    """The text without the passwords of any URL in it, nor those of `urls`, wherever a driver has put them."""
    text = _IN_QUERY.sub(rf"\g<before>{HIDDEN}", _USERINFO.sub(rf"\g<before>{HIDDEN}@", text))
    for url in urls:
        for password in _passwords(url or ""):
            # A short one may be part of an ordinary word.
            edge = r"\b" if len(password) < 4 and password.isalnum() else ""
            text = re.sub(edge + re.escape(password) + edge, HIDDEN, text)
    return text


def _passwords(url: str) -> set[str]:
    found = {match["password"] for rule in (_USERINFO, _IN_QUERY) for match in rule.finditer(url)}
    return {form for password in found for form in (password, unquote(password)) if form}
