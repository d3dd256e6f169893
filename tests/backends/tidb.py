"""TiDB: the server that `make tidb` builds, with its storage inside the process and its data in a scratch folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pymysql
import pytest

from tests.backends.base import Backend
from tests.backends.mariadb import free_port
from tests.backends.tidb_build import binary, why_not

START_SECONDS = 90.0
VARIABLE = "LAPSE_TEST_TIDB"


class TidbServer:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lapse-tidb-"))
        self.port, status = free_port(), free_port()
        self.status = f"127.0.0.1:{status}"
        options = {
            "-store": "unistore",
            "-path": str(self.folder / "data"),
            "-host": "127.0.0.1",
            "-P": str(self.port),
            "--status-host": "127.0.0.1",
            "--status": str(status),
            "--socket": "",
            "-log-file": str(self.folder / "log"),
            "-L": "error",
            "--temp-dir": str(self.folder / "temp"),
        }
        command = [str(binary()), *(part for option in options.items() for part in option)]
        if shutil.which("setpriv"):
            # A test process that is killed takes its server along.
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        with (self.folder / "out.log").open("ab") as log:
            environment = os.environ | {"GOMAXPROCS": "2", "TZ": "UTC"}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.folder)
        try:
            self._wait_until_up()
        except BaseException:
            self.close()
            raise
        # With as many as there are stores, which is one, TiDB runs a job a minute.
        self.execute("SET GLOBAL tidb_ttl_running_tasks = 16")

    def url(self, database: str, user: str = "root") -> str:
        return f"mysql://{user}@127.0.0.1:{self.port}/{database}"

    def create(self) -> str:
        name = f"lapse_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[object, ...]]:
        where = {"host": "127.0.0.1", "port": self.port, "user": "root", "database": database}
        with pymysql.connect(**where, autocommit=True, ssl_disabled=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_up(self) -> None:
        until = monotonic() + START_SECONDS
        while monotonic() < until and self._process.poll() is None:
            with suppress(pymysql.err.OperationalError):
                self.execute("SELECT 1")
                return
            sleep(0.1)
        raise RuntimeError(f"tidb-server did not start:\n{(self.folder / 'out.log').read_text()[-4000:]}")


class TidbBackend(Backend):
    """Lapse's own jobs delete here: the tests' clock is not TiDB's, and its own TTL knows no other."""

    instant = "TIMESTAMP(3) NULL"
    wall_clock = "DATETIME(3)"
    key_text = "VARCHAR(100)"

    def __init__(self) -> None:
        self.server = TidbServer()

    @classmethod
    def why_not(cls) -> str | None:
        return why_not()

    def create(self) -> str:
        self.server.execute("SET GLOBAL tidb_ttl_job_enable = ON")
        return self.server.url(self.server.create())

    def drop(self, url: str) -> None:
        self.server.execute(f"DROP DATABASE {url.rsplit('/', 1)[1]}")

    def cut_connections(self, url: str) -> None:
        database = url.rpartition("/")[2]
        find = f"SELECT id FROM information_schema.processlist WHERE db = '{database}'"
        for (number,) in self.server.execute(find):
            with suppress(pymysql.err.MySQLError):
                self.server.execute(f"KILL {number}")

    def close(self) -> None:
        self.server.close()

    def veto(self, table: str, condition: str) -> tuple[str, ...]:
        pytest.skip("TiDB has no triggers")

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"
