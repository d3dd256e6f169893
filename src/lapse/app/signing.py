"""Signed JSON files: what one says, the public key and the signature, Ed25519; any changed byte is noticed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapse.errors import InvalidValue, LapseError, Refused
from lapse.model.ledger import canonical

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_VARIABLE = "LAPSE_CERTIFICATE_KEY"
PRIVATE_MODE, PUBLIC_MODE = 0o600, 0o644


def default_key() -> Path:
    """$LAPSE_CERTIFICATE_KEY, or a file of the user's."""
    given = os.environ.get(KEY_VARIABLE)
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(given) if given else home / "lapse" / "certificate.key"


def public_file(key: Path) -> Path:
    return key.with_name(key.name + ".pub")


def make_key(path: Path) -> None:
    """A new private key that its user alone can read, and the public key beside it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_new(path, private, PRIVATE_MODE)
    _write_new(public_file(path), public, PUBLIC_MODE)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    except FileExistsError:
        raise Refused(f"{path} is there already and is not overwritten", hint="name another file") from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def load_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise Refused(f"{path} can be read by other users, who could sign with it", hint=f"chmod 600 {path}")
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidValue("--key-file", str(path), f"is no private key that can be read: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidValue("--key-file", str(path), "is a key of another kind than Ed25519")
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidValue("--public-key", str(path), f"is no public key: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidValue("--public-key", str(path), "is a key of another kind than Ed25519")
    return key


def signed(statement: Mapping[str, Any], key: Ed25519PrivateKey) -> str:
    """The text of the file."""
    content = {"statement": statement, "public_key": key.public_key().public_bytes_raw().hex()}
    return _written(content | {"signature": key.sign(_message(content)).hex()})


def opened(text: str, public_key: Ed25519PublicKey | None) -> dict[str, Any]:
    """What a file says. Raises NotGenuine where a byte of it was changed, or another key has signed it."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        found = json.loads(text)
        content = {name: found[name] for name in ("statement", "public_key")}
        named, signature = (bytes.fromhex(found[name]) for name in ("public_key", "signature"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NotGenuine("this is no certificate") from None
    # One text for one certificate: spaces, doubled keys and other spellings of a number would go unnoticed otherwise.
    if text != _written(content | {"signature": signature.hex()}) or found["public_key"] != named.hex():
        raise NotGenuine("the certificate was changed")
    if public_key is not None and public_key.public_bytes_raw() != named:
        raise NotGenuine("the certificate was signed with another key than the one given")
    try:
        Ed25519PublicKey.from_public_bytes(named).verify(signature, _message(content))
    except (InvalidSignature, ValueError):
        raise NotGenuine("the certificate was changed") from None
    statement: dict[str, Any] = content["statement"]
    return statement


class NotGenuine(LapseError):
    """A certificate that is not what was signed."""


def _message(content: Mapping[str, Any]) -> bytes:
    text = canonical(content)
    assert text is not None
    return b"lapse certificate 1\n" + text.encode()


def _written(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=True) + "\n"
