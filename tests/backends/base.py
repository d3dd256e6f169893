"""What a conformance test needs from a database server."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar

MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 4 << 30


def quick_folder() -> Path | None:
    """Memory, where there is enough of it; None, the usual place, otherwise. No test cuts the power."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES else None


class Backend(ABC):
    """One server, shared by the tests of a process; every test gets a database of its own."""

    instant: ClassVar[str]
    """A column type for instants: `<name> {instant}`."""
    wall_clock: ClassVar[str]
    """A column type for times without a zone."""
    bigint: ClassVar[str] = "BIGINT"
    text: ClassVar[str] = "TEXT"
    key_text: ClassVar[str] = "TEXT"
    """A text type that can be a primary key."""
    lock: ClassVar[tuple[str, ...]] = ()
    """Statements by which a session locks a table, {t}, against everybody; none where only the whole file is locked."""

    @classmethod
    @abstractmethod
    def why_not(cls) -> str | None:
        """Why this server cannot be started here; None if it can."""

    @abstractmethod
    def create(self) -> str:
        """A new, empty database; returns its URL."""

    def worker_url(self, url: str) -> str:
        """How workers connect to it; another role's where the backend keeps roles apart."""
        return url

    def administer(self, url: str, statement: str) -> None:
        """Run a statement as an administrator of the server."""
        raise NotImplementedError

    @abstractmethod
    def drop(self, url: str) -> None: ...

    def close(self) -> None:  # noqa: B027 - a file has nothing to stop
        """Stop the server."""

    def restart(self) -> None:  # noqa: B027 - a file has no server
        """Stop the server in the middle of whatever it does, and start it again; nothing where there is none."""

    def cut_connections(self, url: str) -> None:  # noqa: B027 - a file has no server
        """End every connection to a database; nothing where there are none."""

    def load_zones(self, names: Collection[str]) -> None:  # noqa: B027 - others know them anyway
        """Make the server know time zones."""

    def keep_in_utc(self, url: str) -> None:  # noqa: B027 - others are anyway
        """Give the sessions of a database UTC as their zone."""

    @abstractmethod
    def veto(self, table: str, condition: str) -> tuple[str, ...]:
        """Statements that make a trigger keep the rows OLD for which a condition holds from being deleted."""

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'
