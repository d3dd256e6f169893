"""What deleters that first find keys and then delete by them have in common: a cursor, and moving it past one row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from lapse.engines.base import Batch, Checkpoint, Deleter

Key = tuple[Any, ...]
Connect = Callable[[], AbstractContextManager[Connection]]
Atomic = Callable[[Connection], AbstractContextManager[None]]


class KeysetDeleter(Deleter):
    def __init__(self, cursor: str | None, connect: Connect, atomic: Atomic) -> None:
        self._cursor = cursor
        self._connect = connect
        self._atomic = atomic

    @abstractmethod
    def _find(self, connection: Connection, limit: int) -> tuple[list[Key], Batch]:
        """Keys of at most `limit` expired rows after the cursor; the batch carries examined, cursor and done."""

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        with self._connect() as connection:
            found, batch = self._find(connection, 1)
            batch = replace(batch, selected=len(found), held=len(found))
            with self._atomic(connection):
                checkpoint(connection, batch)
        self._cursor = batch.cursor
        return batch

    def restart(self) -> None:
        self._cursor = None
