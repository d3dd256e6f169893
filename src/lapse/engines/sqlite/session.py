"""Connections to a SQLite file: how they wait and write, and their transactions."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from lapse.errors import (
    DatabaseUnavailable,
    UnsupportedUrl,
)

PATIENT_MS = 5_000
"""How long a declaration waits for the write lock."""
DELETE_MS = 20
"""How long a delete waits for it: the application goes first."""
DELETE_CACHE_KIB = 65_536
"""A batch touches two pages a row, in no order: what does not fit is written twice, under the lock."""
LOOKS_EVERY = 10_000
"""Steps of SQLite's machine, well below a millisecond, between two looks at the time."""
_NO_TRANSACTION = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK", "PRAGMA", "VACUUM", "ATTACH", "DETACH", ""})


def scratch_file() -> str:
    handle, path = tempfile.mkstemp(prefix="lapse-", suffix=".db")
    os.close(handle)
    return path


def open_for_users(path: Path) -> Engine:
    """Connections as SQLite makes them."""
    return create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool, isolation_level="AUTOCOMMIT")


def open_database(url: URL, path: Path, *, deleting: bool = False) -> Engine:
    unknown = set(url.query)
    if unknown:
        raise UnsupportedUrl(f"unknown parameters in the SQLite URL: {', '.join(sorted(unknown))}")
    database = create_engine(URL.create("sqlite", database=str(path)), isolation_level="AUTOCOMMIT")

    @event.listens_for(database, "connect")
    def _configure(raw: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute(f"PRAGMA busy_timeout = {DELETE_MS if deleting else PATIENT_MS}")
        record.info["synchronous"] = raw.execute("PRAGMA synchronous").fetchone()[0]
        record.info["file"] = _file_at(path)
        if deleting:
            raw.execute(f"PRAGMA cache_size = -{DELETE_CACHE_KIB}")
            # A condition with functions makes SQLite keep a copy of every page it changes until the statement ends.
            raw.execute("PRAGMA temp_store = MEMORY")
            # The deleter does it itself, after the lock is released.
            raw.execute("PRAGMA wal_autocheckpoint = 0")

    @event.listens_for(database, "checkout")
    def _check_file(raw: sqlite3.Connection, record: ConnectionPoolEntry, proxy: object) -> None:
        """Another file may have been put in this one's place: what is written to the old one is lost."""
        if record.info["file"] != _file_at(path):
            raise DisconnectionError("the file was replaced")

    @event.listens_for(database, "checkout")
    def _trust_the_log(raw: sqlite3.Connection, record: ConnectionPoolEntry, proxy: object) -> None:
        """A deletion that a power cut undoes is simply done again: with a write-ahead log no commit need wait."""
        if deleting:
            wal = raw.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
            raw.execute(f"PRAGMA synchronous = {'NORMAL' if wal else record.info['synchronous']}")

    return database


def _file_at(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise DatabaseUnavailable(f"the file {path} cannot be read: {error.strerror}") from error
    return found.st_dev, found.st_ino


def has_log(connection: Connection) -> bool:
    """With a write-ahead log readers and writers do not wait for each other."""
    return bool(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal")


def file_bytes(connection: Connection) -> int:
    sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    return int(connection.exec_driver_sql(sql).scalar_one())


def raw(connection: Connection) -> sqlite3.Connection:
    found = connection.connection.driver_connection
    assert isinstance(found, sqlite3.Connection)
    return found


@contextmanager
def atomic(connection: Connection) -> Iterator[None]:
    driver = raw(connection)
    nested = driver.in_transaction
    begin, commit, rollback = "BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"
    if nested:
        begin, commit, rollback = "SAVEPOINT lapse", "RELEASE lapse", "ROLLBACK TO lapse"
    connection.exec_driver_sql(begin)
    try:
        yield
        connection.exec_driver_sql(commit)
    except BaseException:
        if not connection.invalidated and driver.in_transaction:
            connection.exec_driver_sql(rollback)
            if nested:
                connection.exec_driver_sql(commit)
        raise


@contextmanager
def limited(connection: Connection, seconds: float) -> Iterator[None]:
    """A statement that takes longer is interrupted, and one that meets a lock gives up at once."""
    driver, until = raw(connection), monotonic() + seconds
    driver.set_progress_handler(lambda: monotonic() > until, LOOKS_EVERY)
    driver.execute("PRAGMA busy_timeout = 0")
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)
        driver.execute(f"PRAGMA busy_timeout = {PATIENT_MS}")


def is_locked(connection: Connection) -> bool:
    """Does another connection hold the write lock? SQLite tells only those who ask for it."""
    driver = raw(connection)
    if driver.in_transaction:
        return False
    driver.execute("PRAGMA busy_timeout = 0")
    try:
        driver.execute("BEGIN IMMEDIATE")
        driver.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        return error.sqlite_errorname == "SQLITE_BUSY"
    finally:
        driver.execute(f"PRAGMA busy_timeout = {PATIENT_MS}")
    return False


def begin_implicitly(driver: Any, verb: str) -> None:
    if not driver.in_transaction and verb not in _NO_TRANSACTION:
        driver.execute("BEGIN")
