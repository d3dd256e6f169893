"""Locks for DDL: asked for briefly, given up, asked for again, so that nobody's traffic queues behind the request."""

from __future__ import annotations

from time import sleep

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.postgres.session import savepoint, sqlstate
from lapse.errors import Retryable

LOCK_NOT_AVAILABLE = "55P03"
TRIES = (
    *((0.1, 0.05),) * 2,
    (0.2, 0.05),
    (0.3, 0.1),
    (0.4, 0.15),
    *((0.5, 0.5),) * 8,
    *((1.0, 1.0),) * 6,
)
"""Pairs of seconds: how long to wait for the lock, how long to leave the way free before asking again."""


def lock_table(connection: Connection, relation: str) -> None:
    """Take the strongest lock on a table, inside the caller's transaction, which holds no other lock that hurts."""
    before = connection.exec_driver_sql("SELECT current_setting('lock_timeout')").scalar_one()
    for wait, pause in TRIES:
        try:
            with savepoint(connection):
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(wait * 1000)}")
                connection.exec_driver_sql(f"LOCK TABLE {relation} IN ACCESS EXCLUSIVE MODE")
        except DBAPIError as error:
            if sqlstate(error.orig) != LOCK_NOT_AVAILABLE:
                raise
            sleep(pause)
        else:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{before}'")
            return
    seconds = round(sum(wait + pause for wait, pause in TRIES))
    raise Retryable(
        f"table {relation} stayed locked for {seconds} seconds, so nothing was changed",
        hint="SELECT * FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' may show who holds it",
    )
