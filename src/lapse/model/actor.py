"""Who does something, and from where: as far as this process knows it. The database adds the role it was done with."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """`user` is the operating system's, or the one that the console or a client knows by name."""

    user: str
    host: str
    program: str


_acting: ContextVar[Actor | None] = ContextVar("acting", default=None)


def current_actor() -> Actor:
    return _acting.get() or _process()


def acting_user() -> str | None:
    """For whom this process does something; None where it does so for itself."""
    actor = _acting.get()
    return None if actor is None else actor.user


@contextmanager
def acting(*, user: str, program: str) -> Iterator[None]:
    """What is done inside is done for this user: of the console, or of the database's own client."""
    token = _acting.set(Actor(user=_clean(user), host=_process().host, program=program))
    try:
        yield
    finally:
        _acting.reset(token)


@cache
def _process() -> Actor:
    return Actor(user=_clean(_user()), host=_clean(socket.gethostname()), program=_clean(_program()) or "python")


def _program() -> str:
    """By the name of the package where it was begun with `python -m`."""
    path = PurePath(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def _clean(text: str) -> str:
    """As every database can store it: a byte that is no character of the locale's is shown as one."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have a number and no name.
        return str(os.getuid())
