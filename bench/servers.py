"""Private servers, set up as in production: everything durable, memory for the whole table, nobody else on them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from sqlalchemy import URL, make_url

from tests.backends.mariadb import MariadbServer, has_rocksdb, why_no_server
from tests.backends.postgres import Cluster, DebianPostgres

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
MYROCKS = ("--rocksdb-block-cache-size=2G",)


class NotHere(Exception):
    """This server cannot be started on this machine; the reason is the message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    url: URL
    version: str


@contextmanager
def postgres() -> Iterator[Server]:
    binaries = DebianPostgres.binaries()
    if binaries is None or DebianPostgres.why_not():
        raise NotHere(DebianPostgres.why_not() or "no server programs found")
    cron = (binaries.parent / "lib" / "pg_cron.so").exists()
    extra = {"shared_preload_libraries": "pg_cron", "cron.database_name": "postgres"} if cron else {}
    cluster = Cluster(binaries, POSTGRES | extra, on_disk=True)
    try:
        with psycopg.connect(cluster.url(), autocommit=True) as connection:
            row = connection.execute("SHOW server_version").fetchone()
        yield Server(url=make_url(cluster.url()), version=f"PostgreSQL {str(row and row[0]).split()[0]}")
    finally:
        cluster.close()


@contextmanager
def mariadb() -> Iterator[Server]:
    missing = why_no_server()
    if missing:
        raise NotHere(missing)
    server = MariadbServer(*MARIADB, *(MYROCKS if has_rocksdb() else ()), rocksdb=has_rocksdb(), on_disk=True)
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


SERVERS = {"postgres": postgres, "mariadb": mariadb, "sqlite": sqlite}
