"""How a URL asks for an encrypted connection: as MySQL's client writes it, as PostgreSQL's does, and as PyMySQL does.

    ?ssl_mode=DISABLED | PREFERRED | REQUIRED | VERIFY_CA | VERIFY_IDENTITY
    ?sslmode=disable | prefer | require | verify-ca | verify-full
    ?ssl=true, ?ssl_ca=FILE, ?ssl_capath=FOLDER, ?ssl_cert=FILE, ?ssl_key=FILE, ?ssl_cipher=LIST,
    ?ssl_verify_cert=true, ?ssl_verify_identity=true, ?ssl_disabled=true

Without any of them a connection is encrypted where the server can, and the server is not asked who it is.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from sqlalchemy import URL

from lapse.errors import UnsupportedUrl


class Mode(IntEnum):
    DISABLED = 0
    PREFERRED = 1
    REQUIRED = 2
    VERIFY_CA = 3
    VERIFY_IDENTITY = 4


_MODES = {
    **{mode.name.lower(): mode for mode in Mode},
    "disable": Mode.DISABLED,
    "allow": Mode.PREFERRED,
    "prefer": Mode.PREFERRED,
    "require": Mode.REQUIRED,
    "verify_full": Mode.VERIFY_IDENTITY,
}
_FILES = {
    "ssl_ca": "ssl_ca",
    "sslrootcert": "ssl_ca",
    "ssl_capath": "ssl_capath",
    "ssl_cert": "ssl_cert",
    "sslcert": "ssl_cert",
    "ssl_key": "ssl_key",
    "sslkey": "ssl_key",
    "ssl_cipher": "ssl_cipher",
    "ssl_key_password": "ssl_key_password",
}
_SWITCHES = {
    "ssl": Mode.REQUIRED,
    "ssl_verify_cert": Mode.VERIFY_CA,
    "ssl_verify_identity": Mode.VERIFY_IDENTITY,
    "ssl_check_hostname": Mode.VERIFY_IDENTITY,
}
_WORDS = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}


def is_option(name: str) -> bool:
    return name.lower().startswith("ssl")


def arguments(url: URL) -> dict[str, Any]:
    """What the driver is given for the options of a URL; empty where there are none."""
    given = {name.lower().replace("-", "_"): str(value) for name, value in url.query.items() if is_option(name)}
    unknown = set(given) - {*_FILES, *_SWITCHES, "ssl_mode", "sslmode", "ssl_disabled"}
    if unknown:
        raise UnsupportedUrl(
            f"unknown option {min(unknown)} in the URL",
            hint="TLS is asked for by ssl_mode, ssl_ca, ssl_capath, ssl_cert, ssl_key, ssl_cipher",
        )
    files = {_FILES[name]: value for name, value in given.items() if name in _FILES}
    mode = _mode(given, files)
    if mode is Mode.DISABLED:
        return {"ssl_disabled": True}
    return {} if mode is Mode.PREFERRED and not files else {"ssl": _context(mode, files)}


def _mode(given: Mapping[str, str], files: Mapping[str, str]) -> Mode:
    """The one that was named, or else the strictest that the other options ask for."""
    for name in ("ssl_mode", "sslmode"):
        if name in given:
            found = _MODES.get(given[name].lower().replace("-", "_"))
            if found is None:
                words = ", ".join(mode.name for mode in Mode)
                raise UnsupportedUrl(f"{name}={given[name]} in the URL: must be one of {words}")
            return found
    switches = {name: _switch(name, value) for name, value in given.items() if name in {*_SWITCHES, "ssl_disabled"}}
    if switches.pop("ssl_disabled", False) or switches.get("ssl") is False:
        return Mode.DISABLED
    asked = [_SWITCHES[name] for name, on in switches.items() if on]
    if files:
        asked.append(Mode.REQUIRED)
    if "ssl_ca" in files or "ssl_capath" in files:
        # As strict as can be, unless that was switched off: this has always checked the name as well.
        trusting = switches.get("ssl_verify_cert") is False
        named = switches.get("ssl_check_hostname", switches.get("ssl_verify_identity", True))
        asked.append(Mode.REQUIRED if trusting else Mode.VERIFY_IDENTITY if named else Mode.VERIFY_CA)
    return max(asked, default=Mode.PREFERRED)


def _switch(name: str, value: str) -> bool:
    if value.lower() not in _WORDS:
        raise UnsupportedUrl(f"{name}={value} in the URL: must be true or false")
    return _WORDS[value.lower()]


def _context(mode: Mode, files: Mapping[str, str]) -> ssl.SSLContext:
    """Without a file of authorities those of the system are trusted, for a server whose certificate was bought."""
    try:
        context = ssl.create_default_context(cafile=files.get("ssl_ca"), capath=files.get("ssl_capath"))
        # The certificates that MySQL makes for itself do not pass it.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = mode is Mode.VERIFY_IDENTITY
        context.verify_mode = ssl.CERT_REQUIRED if mode >= Mode.VERIFY_CA else ssl.CERT_NONE
        if "ssl_cert" in files:
            context.load_cert_chain(files["ssl_cert"], files.get("ssl_key"), files.get("ssl_key_password"))
        if "ssl_cipher" in files:
            context.set_ciphers(files["ssl_cipher"])
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(f"{name}={value}" for name, value in files.items() if name != "ssl_key_password")
        raise UnsupportedUrl(f"{names} in the URL cannot be used: {error}") from error
    return context
