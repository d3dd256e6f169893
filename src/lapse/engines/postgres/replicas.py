"""Finding expired rows on a standby, as `ttl_select_as_of_system_time` asks for; the primary deletes what was found.

Rows have the same addresses there, so the standby tells which blocks need not be looked at. It is behind: a row that it
shows as expired may have been renewed since, or be gone, and the batch function on the primary checks the condition
again. One that it does not show yet is found by the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError

from lapse.engines.postgres import session
from lapse.engines.postgres.inspect import rows
from lapse.errors import UnsupportedUrl

REPLICAS_OPTION = "lapse_replicas"
KNOWN_SECONDS = 1.0
"""For so long what was learned about the standbys is believed."""
T = TypeVar("T")

_PRIMARY = """
    SELECT pg_catalog.pg_current_wal_lsn()::text AS written, s.system_identifier AS cluster,
           pg_catalog.clock_timestamp()::text AS moment
      FROM pg_catalog.pg_control_system() s"""

# A standby that has everything is not behind, however long ago the last transaction was.
_STANDBY = """
    SELECT s.system_identifier = %(cluster)s AND pg_catalog.pg_is_in_recovery() AS follows,
           pg_catalog.pg_last_wal_replay_lsn() >= %(written)s::pg_lsn AS has_all,
           extract(epoch FROM %(moment)s::timestamptz - pg_catalog.pg_last_xact_replay_timestamp()) AS behind
      FROM pg_catalog.pg_control_system() s"""


def read_url(url: URL) -> tuple[URL, dict[str, URL]]:
    """The URL without Lapse's own option, and the standbys in it by `host:port`, reached like the primary."""
    plain = url.difference_update_query([REPLICAS_OPTION])
    found: dict[str, URL] = {}
    for address in filter(None, (each.strip() for each in str(url.query.get(REPLICAS_OPTION, "")).split(","))):
        host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
        if not host or (port and not port.isdecimal()):
            raise UnsupportedUrl(
                f"{REPLICAS_OPTION}={address} in the URL: must be host or host:port, separated by commas"
            )
        # A host in the query would win over this one.
        direct = plain.difference_update_query(["host", "port"])
        found[address] = direct.set(host=host.strip("[]"), port=int(port) if port else plain.port)
    return plain, found


def open_pools(urls: Mapping[str, URL]) -> dict[str, Database]:
    return {address: session.open_database(url) for address, url in urls.items()}


class Reader:
    """Asks a standby of this server that is no more than `staleness` seconds behind."""

    def __init__(self, pools: Mapping[str, Database], staleness: float) -> None:
        self._pools = pools
        self._staleness = staleness
        self._current: Database | None = None
        self._until = 0.0

    def has_standby(self, primary: Connection) -> bool:
        if monotonic() > self._until:
            self._current = next((pool for pool in self._pools.values() if self._is_close(primary, pool)), None)
            self._until = monotonic() + KNOWN_SECONDS
        return self._current is not None

    def ask(self, primary: Connection, question: Callable[[Connection], T]) -> T | None:
        """None where there is no such standby now."""
        if self.has_standby(primary):
            assert self._current is not None
            try:
                with self._current.connect() as standby:
                    return question(standby)
            except DBAPIError:
                # It went away, or what it replays was in the way of the question: the primary knows.
                self._current, self._until = None, monotonic() + KNOWN_SECONDS
        return None

    def _is_close(self, primary: Connection, pool: Database) -> bool:
        """A copy, or a standby of another server, is not asked: what it lacks would never be deleted."""
        try:
            (now,) = rows(primary, _PRIMARY)
            with pool.connect() as standby:
                (found,) = rows(standby, _STANDBY, now)
        except DBAPIError:
            return False
        if not found["follows"]:
            return False
        return bool(found["has_all"]) or (found["behind"] is not None and found["behind"] <= self._staleness)
