"""The databases the conformance suite runs on, each started privately.

A backend makes empty databases and knows how the engine spells a few types. Adding an engine is adding a module here
and its name to `BACKENDS`. `LAPSE_TEST_ONLY=mariadb` runs everything on that one alone.
"""

from __future__ import annotations

import os

from tests.backends.base import Backend
from tests.backends.mariadb import MariadbBackend
from tests.backends.mysql import MysqlBackend
from tests.backends.postgres import (
    DebianPostgres,
    DebianWorkerRole,
    GivenPostgres,
    GivenWorkerRole,
    WheelPostgres,
    WheelWorkerRole,
)
from tests.backends.sqlite import SqliteBackend
from tests.backends.tidb import VARIABLE as TIDB_VARIABLE
from tests.backends.tidb import TidbBackend

BACKENDS: dict[str, type[Backend]] = {
    "sqlite": SqliteBackend,
    "postgres15": DebianPostgres,
    "postgres18": WheelPostgres,
    "mariadb": MariadbBackend,
    "mysql": MysqlBackend,
}

if os.environ.get(TIDB_VARIABLE):
    BACKENDS["tidb"] = TidbBackend

_ROLES: dict[str, type[Backend]] = {"postgres15-role": DebianWorkerRole, "postgres18-role": WheelWorkerRole}
if GivenPostgres.binaries() is not None:
    BACKENDS["postgres-given"] = GivenPostgres
    _ROLES["postgres-given-role"] = GivenWorkerRole
CONFORMING = {name: backend for name, backend in BACKENDS.items() if name != "postgres18"} | _ROLES
"""What the conformance suite runs on: every server, PostgreSQL with a worker that has no right on any table, and one of
its versions with one role for everything as well."""

if only := os.environ.get("LAPSE_TEST_ONLY"):
    BACKENDS = {name: backend for name, backend in BACKENDS.items() if name == only}
    CONFORMING = {name: backend for name, backend in (BACKENDS | CONFORMING).items() if name.startswith(only)}

__all__ = ["BACKENDS", "CONFORMING", "Backend"]
