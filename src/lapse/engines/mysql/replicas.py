"""Finding expired rows on a replica, as `ttl_select_as_of_system_time` asks for; the primary deletes what was found.

A replica is behind. A row that it shows as expired may have been renewed since, or be gone: whatever deletes checks the
condition again. One that it does not show yet is found by the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError

from lapse.engines.mysql import session
from lapse.engines.mysql.gauges import REPLICA_STATUS

KNOWN_SECONDS = 1.0
"""For so long what was learned about the replicas is believed."""
READ_SECONDS = 10
T = TypeVar("T")


def open_pools(options: session.UrlOptions) -> dict[str, Database]:
    """By `host:port`, with sessions like the primary's own: times and texts must mean the same there."""
    arguments = {**options.arguments, "connect_timeout": session.REPLICA_SECONDS, "read_timeout": READ_SECONDS}
    return {
        session.address(url): session.open_database(replace(options, url=url, arguments=arguments, replicas=()), set())
        for url in options.replicas
    }


class Reader:
    """Asks a replica that follows this server and is no more than `staleness` seconds behind; where there is none, the
    primary."""

    def __init__(self, pools: Mapping[str, Database], server_id: int, staleness: float) -> None:
        self._pools = pools
        self._server_id = server_id
        self._staleness = staleness
        self._current: Database | None = None
        self._until = 0.0

    def has_replica(self) -> bool:
        if monotonic() > self._until:
            self._current = next((pool for pool in self._pools.values() if self._is_close(pool)), None)
            self._until = monotonic() + KNOWN_SECONDS
        return self._current is not None

    def ask(self, primary: Connection, question: Callable[[Connection], T]) -> T:
        if self.has_replica():
            try:
                with self._session() as replica:
                    return question(replica)
            except DBAPIError:
                # It went away, or lacks the table: the primary knows.
                self._current, self._until = None, monotonic() + KNOWN_SECONDS
        return question(primary)

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        assert self._current is not None
        with self._current.connect() as connection:
            yield connection

    def _is_close(self, pool: Database) -> bool:
        """A server that follows another one, or none, is not asked: what it lacks would never be deleted."""
        try:
            with pool.connect() as connection:
                behind = _behind(connection, self._server_id)
        except DBAPIError:
            return False
        return behind is not None and behind <= self._staleness


def _behind(connection: Connection, server_id: int) -> float | None:
    """Seconds behind the server of this number; None where it is not followed now, or this account may not see it."""
    for statement in REPLICA_STATUS:
        try:
            rows = connection.exec_driver_sql(statement).mappings().all()
        except DBAPIError:
            continue
        for row in rows:
            seconds = row.get("Seconds_Behind_Master", row.get("Seconds_Behind_Source"))
            if int(row.get("Master_Server_Id", row.get("Source_Server_Id")) or 0) == server_id and seconds is not None:
                return float(seconds)
        return None
    return None
