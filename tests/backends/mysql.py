"""A MySQL server that somebody else runs, named by LAPSE_TEST_MYSQL_URL: `mysql://user:password@host:port`."""

from __future__ import annotations

import os
import uuid

from sqlalchemy import create_engine, make_url

from tests.backends.base import Backend

VARIABLE = "LAPSE_TEST_MYSQL_URL"


class MysqlBackend(Backend):
    """Only databases are made and dropped; the server is not ours to stop."""

    instant = "TIMESTAMP(3) NULL"
    wall_clock = "DATETIME(3)"
    key_text = "VARCHAR(100)"

    def __init__(self) -> None:
        self._url = make_url(os.environ[VARIABLE])
        self._admin = create_engine(self._url.set(drivername="mysql+pymysql"), isolation_level="AUTOCOMMIT")

    @classmethod
    def why_not(cls) -> str | None:
        return None if os.environ.get(VARIABLE) else f"{VARIABLE} is not set"

    def create(self) -> str:
        name = f"lapse_test_{uuid.uuid4().hex[:12]}"
        self._run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return self._url.set(database=name).render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        self._run(f"DROP DATABASE {make_url(url).database}")

    def close(self) -> None:
        self._admin.dispose()

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def _run(self, sql: str) -> None:
        with self._admin.connect() as connection:
            connection.exec_driver_sql(sql)
