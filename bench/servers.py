"""Private servers, everything durable, no other client on them: tuned, with memory for the whole table, or stock, as
the packages start them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
from sqlalchemy import URL, make_url

from tests.backends.mariadb import MariadbServer, has_rocksdb, why_no_server
from tests.backends.mysql import MysqlBackend, MysqlServer
from tests.backends.postgres import Cluster, DebianPostgres
from tests.backends.tidb import TidbServer
from tests.backends.tidb_build import RELEASE
from tests.backends.tidb_build import why_not as why_no_tidb

POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "2GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "wal_level": "replica",
    "autovacuum": "off",
}
MARIADB = (
    "--innodb-buffer-pool-size=2G",
    "--innodb-log-file-size=1G",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-doublewrite=1",
    "--innodb-flush-method=O_DIRECT",
)
STOCK_POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "5min",
    "wal_level": "replica",
    "autovacuum": "on",
}
STOCK_MARIADB = (
    "--innodb-buffer-pool-size=128M",
    "--innodb-log-file-size=96M",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-doublewrite=1",
    "--innodb-flush-method=O_DIRECT",
)
MYSQL = (
    "--innodb-buffer-pool-size=2G",
    "--innodb-redo-log-capacity=2G",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-doublewrite=ON",
    "--innodb-flush-method=O_DIRECT",
)
MYROCKS = ("--rocksdb-block-cache-size=2G",)


class NotHere(Exception):
    """This server cannot be started on this machine; the reason is the message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """`pid` is the server's process, `status` where TiDB answers about itself."""

    url: URL
    version: str
    pid: int | None = None
    status: str = ""


@contextmanager
def postgres(*, stock: bool = False) -> Iterator[Server]:
    binaries = DebianPostgres.binaries()
    if binaries is None or DebianPostgres.why_not():
        raise NotHere(DebianPostgres.why_not() or "no server programs found")
    cron = (binaries.parent / "lib" / "pg_cron.so").exists()
    extra = {"shared_preload_libraries": "pg_cron", "cron.database_name": "postgres"} if cron else {}
    cluster = Cluster(binaries, (STOCK_POSTGRES if stock else POSTGRES) | extra, on_disk=True)
    try:
        with psycopg.connect(cluster.url(), autocommit=True) as connection:
            row = connection.execute("SHOW server_version").fetchone()
        yield Server(url=make_url(cluster.url()), version=f"PostgreSQL {str(row and row[0]).split()[0]}")
    finally:
        cluster.close()


@contextmanager
def mariadb(*, stock: bool = False) -> Iterator[Server]:
    missing = why_no_server()
    if missing:
        raise NotHere(missing)
    rocksdb = has_rocksdb() and not stock
    options = STOCK_MARIADB if stock else (*MARIADB, *(MYROCKS if rocksdb else ()))
    server = MariadbServer(*options, rocksdb=rocksdb, on_disk=True)
    try:
        server.execute("CREATE DATABASE bench")
        ((version,),) = server.execute("SELECT version()")
        yield Server(url=make_url(f"{server.url}/bench"), version=f"MariaDB {str(version).split('-')[0]}")
    finally:
        server.close()


@contextmanager
def sqlite() -> Iterator[Server]:
    import sqlite3

    with tempfile.TemporaryDirectory(prefix="lapse-bench-") as folder:
        url = make_url(f"sqlite:///{Path(folder) / 'bench.db'}")
        yield Server(url=url, version=f"SQLite {sqlite3.sqlite_version}")


@contextmanager
def mysql() -> Iterator[Server]:
    missing = MysqlBackend.why_not()
    if missing:
        raise NotHere(missing)
    server = MysqlServer(*MYSQL, on_disk=True)
    try:
        server.execute("CREATE DATABASE bench")
        ((version,),) = server.execute("SELECT version()")
        version = f"MySQL {str(version).split('-')[0]}"
        yield Server(url=make_url(f"{server.url}/bench"), version=version, pid=server.pid)
    finally:
        server.close()


@contextmanager
def tidb() -> Iterator[Server]:
    missing = why_no_tidb()
    if missing:
        raise NotHere(missing)
    server = TidbServer()
    try:
        server.execute("CREATE DATABASE bench")
        yield Server(
            url=make_url(server.url("bench")),
            version=f"TiDB {RELEASE.removeprefix('v')}, its storage in the same process",
            status=server.status,
        )
    finally:
        server.close()


STOCK_SERVERS = {"postgres": partial(postgres, stock=True), "mariadb": partial(mariadb, stock=True)}
SERVERS = {"postgres": postgres, "mariadb": mariadb, "sqlite": sqlite, "mysql": mysql, "tidb": tidb}
