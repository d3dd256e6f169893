"""Many writes at once, or one that must be alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Plain writes pass together; a read-modify-write, or a purge's look-then-delete, waits for them and
    keeps later ones out. Cheaper for the plain write than a lock: no task switch unless somebody is alone
    inside."""

    def __init__(self) -> None:
        self._passing = 0
        self._alone = asyncio.Lock()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_taken(self) -> bool:
        return self._alone.locked()

    def try_enter(self) -> bool:
        """Enter without waiting, if nobody is alone inside."""
        if self._alone.locked():
            return False
        self._passing += 1
        if self._passing == 1:
            self._empty.clear()
        return True

    async def __aenter__(self) -> None:
        while not self.try_enter():
            async with self._alone:
                pass

    async def __aexit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._passing -= 1
        if not self._passing:
            self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._alone:
            await self._empty.wait()
            yield
