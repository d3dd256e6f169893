"""What a conformance test needs from a database server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar


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

    @abstractmethod
    def drop(self, url: str) -> None: ...

    def close(self) -> None:  # noqa: B027 - a file has nothing to stop
        """Stop the server."""

    def restart(self) -> None:  # noqa: B027 - a file has no server
        """Stop the server in the middle of whatever it does, and start it again; nothing where there is none."""

    def cut_connections(self, url: str) -> None:  # noqa: B027 - a file has no server
        """End every connection to a database; nothing where there are none."""

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'
