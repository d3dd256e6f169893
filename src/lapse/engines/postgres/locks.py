"""Locks: waited for briefly, given up, and asked for again, so that no traffic queues behind the request.

A worker that meets a locked table leaves it to later. A person's DDL is more patient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.postgres.errors import LOCK_NOT_AVAILABLE, sqlstate
from lapse.engines.postgres.session import savepoint
from lapse.errors import Blocked, Retryable
from lapse.model.blocked import BlockCode

LOOK_SECONDS = 1.0
"""How long anything that Lapse only looks at is waited for."""
CATALOG_SECONDS = 10.0
"""How long a transaction on the catalog waits for another one, which is short, too."""
BRIEFLY = {"lock_timeout": f"{LOOK_SECONDS:g}s"}
TRIES = (
    *((0.1, 0.05),) * 2,
    (0.2, 0.05),
    (0.3, 0.1),
    (0.4, 0.15),
    *((0.5, 0.5),) * 8,
    *((1.0, 1.0),) * 6,
)
"""Pairs of seconds: how long to wait for the lock, how long to leave the way free before asking again."""
_HINT = "SELECT * FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' may show who holds it"


@contextmanager
def given_up_soon() -> Iterator[None]:
    """What stays locked is blocked, and tried again by itself: other tables do not wait for it."""
    try:
        yield
    except (DBAPIError, Retryable) as error:
        met = error if isinstance(error, DBAPIError) else error.__cause__
        if not isinstance(met, DBAPIError) or sqlstate(met.orig) != LOCK_NOT_AVAILABLE:
            raise
        raise Blocked(
            BlockCode.LOCKED, f"the table stayed locked by another session for {LOOK_SECONDS:g} s", hint=_HINT
        ) from error


def lock_table(connection: Connection, relation: str) -> None:
    """Take the strongest lock on a table, inside the caller's transaction, which holds no other lock that hurts.

    Where that transaction limits its waiting, as those of workers do, it is asked for once. Without a limit it is a
    person's, who would have to ask again.
    """
    before = str(connection.exec_driver_sql("SELECT current_setting('lock_timeout')").scalar_one())
    if before != "0":
        with given_up_soon(), savepoint(connection):
            _lock(connection, relation, LOOK_SECONDS)
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{before}'")
        return
    for wait, pause in TRIES:
        try:
            with savepoint(connection):
                _lock(connection, relation, wait)
                connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        except DBAPIError as error:
            if sqlstate(error.orig) != LOCK_NOT_AVAILABLE:
                raise
            sleep(pause)
        else:
            return
    seconds = round(sum(wait + pause for wait, pause in TRIES))
    raise Retryable(f"table {relation} stayed locked for {seconds} seconds, so nothing was changed", hint=_HINT)


def _lock(connection: Connection, relation: str, seconds: float) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(seconds * 1000)}")
    connection.exec_driver_sql(f"LOCK TABLE {relation} IN ACCESS EXCLUSIVE MODE")
