"""Named users of the console: who may come in, and whether they may act or only look. Kept in a file, by token digest.

Tokens are made here and have 256 bits of chance, so their plain SHA-256 tells nothing about them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from lapse.errors import InvalidValue, UsageError

USERS_VARIABLE = "LAPSE_CONSOLE_USERS"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"role", "token_sha256"}


class Role(StrEnum):
    VIEWER = "viewer"
    """Looks at everything and changes nothing."""
    OPERATOR = "operator"
    """May act as well, where the console was started with --allow-actions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    name: str
    role: Role
    token_sha256: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Who may come in: those who know the one token, or named users. Neither where only this machine is served."""

    token: str | None = field(default=None, repr=False)
    users: tuple[User, ...] = ()

    @classmethod
    def of(cls, token: str | None, file: Path | None) -> Access:
        """Raises UsageError where both are given, or the file is no list of users."""
        if token and file is not None:
            raise UsageError("a token or a file of users, not both", hint="give the programs a user of their own")
        return cls(token=token or None, users=() if file is None else read(file))


def by_token(users: Sequence[User], token: str) -> User | None:
    """All are compared, so that the time tells nothing."""
    given = _digest(token)
    found = [user for user in users if hmac.compare_digest(user.token_sha256, given)]
    return found[0] if found else None


def read(file: Path) -> tuple[User, ...]:
    """The users of a TOML file: `[users.NAME]` with `role` and `token_sha256`."""
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read as a file of users: {error}") from error
    found = told.get("users")
    if set(told) != {"users"} or not isinstance(found, dict) or not found:
        raise UsageError(
            f"{file} has no [users.NAME]", hint=f"lapse console --users {file} --add-user NAME --role viewer"
        )
    users = tuple(_user(file, name, entry) for name, entry in found.items())
    if len({user.token_sha256 for user in users}) < len(users):
        raise UsageError(f"{file} gives two users the same token, so they cannot be told apart")
    return users


def _user(file: Path, name: str, entry: object) -> User:
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise UsageError(f"{file}: user {name} must have role and token_sha256, and nothing else")
    role, digest = entry["role"], entry["token_sha256"]
    if role not in set(Role):
        raise InvalidValue(f"{file}: role of user {name}", role, f"must be one of {', '.join(Role)}")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise InvalidValue(f"{file}: token_sha256 of user {name}", "…", "must be 64 digits from 0 to f")
    return User(name=_checked(name), role=Role(role), token_sha256=digest)


def add(file: Path, name: str, role: Role) -> str:
    """Writes one more user to the file and returns the token, which is stored nowhere."""
    users = read(file) if file.exists() else ()
    if any(user.name == _checked(name) for user in users):
        raise UsageError(f"{file} has a user {name} already", hint="remove its lines to give it another token")
    token = secrets.token_urlsafe(32)
    entry = f"[users.{json.dumps(name)}]\nrole = {json.dumps(str(role))}\ntoken_sha256 = {json.dumps(_digest(token))}\n"
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(opened, "a", encoding="utf-8") as out:
        out.write(f"\n{entry}" if users else entry)
    return token


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidValue("user", name, "must be letters, digits, dots, dashes, underscores or @, at most 64")
    return name


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
