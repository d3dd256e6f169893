"""The databases the conformance suite runs on, each started privately.

A backend makes empty databases and knows how the engine spells a few types. Adding an engine is adding a module here
and its name to `BACKENDS`.
"""

from __future__ import annotations

from tests.backends.base import Backend
from tests.backends.mariadb import MariadbBackend
from tests.backends.mysql import MysqlBackend
from tests.backends.postgres import DebianPostgres, GivenPostgres, WheelPostgres, WorkerRole
from tests.backends.sqlite import SqliteBackend

BACKENDS: dict[str, type[Backend]] = {
    "sqlite": SqliteBackend,
    "postgres15": DebianPostgres,
    "postgres18": WheelPostgres,
    "mariadb": MariadbBackend,
}

if GivenPostgres.binaries() is not None:
    BACKENDS["postgres-given"] = GivenPostgres
if MysqlBackend.why_not() is None:
    BACKENDS["mysql"] = MysqlBackend

CONFORMING = BACKENDS | {"postgres15-role": WorkerRole}
"""What the conformance suite runs on: every server, and one of them without a superuser."""

__all__ = ["BACKENDS", "CONFORMING", "Backend"]
