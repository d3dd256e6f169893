"""MariaDB: a private server from the system's packages, in a temporary directory, without fsync.

`LAPSE_TEST_MARIADB_PACKAGE=mariadb-11.8` takes one that `tests.backends.packages` has fetched instead.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, ClassVar

import pymysql

from tests.backends.base import Backend, quick_folder
from tests.backends.packages import PACKAGES, Package

START_SECONDS = 60.0
STOP_SECONDS = 30.0
CUT_SECONDS = 5.0
PLUGINS = Path("/usr/lib/mysql/plugin")
SMALL_AND_UNSAFE = (
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--innodb-flush-method=nosync",
    "--sync-frm=0",
    "--performance-schema=OFF",
    "--skip-name-resolve",
    "--max-connections=200",
    "--table-open-cache=400",
)


BOOTSTRAP = (
    "mariadb_system_tables.sql",
    "mariadb_performance_tables.sql",
    "mariadb_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "mariadb_sys_schema.sql",
)


def fetched() -> Package | None:
    name = os.environ.get("LAPSE_TEST_MARIADB_PACKAGE")
    return PACKAGES[name] if name else None


def why_no_server() -> str | None:
    if package := fetched():
        return package.why_not()
    missing = [name for name in ("mariadbd", "mariadb-install-db") if shutil.which(name, path=_PATH) is None]
    return f"{' and '.join(missing)} not installed" if missing else None


def has_rocksdb() -> bool:
    return fetched() is None and (PLUGINS / "ha_rocksdb.so").exists()


_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])


class MariadbServer:
    """One server process; can be killed and started again on the same data, and given another environment."""

    unsafe: ClassVar[tuple[str, ...]] = SMALL_AND_UNSAFE
    program: ClassVar[str] = "mariadbd"
    drops_triggers: ClassVar[bool] = False
    """May an account drop a trigger that a binary log keeps it from making?"""
    isolation: ClassVar[str] = "tx_isolation"
    """The variable's name: MariaDB knows MySQL's since 11.1, MySQL no longer knows MariaDB's."""
    logging: ClassVar[tuple[str, ...]] = ("--log-bin=log", "--binlog-format=ROW")
    """For a server that others follow, together with a `--server-id`."""

    def __init__(
        self,
        *options: str,
        environment: dict[str, str] | None = None,
        rocksdb: bool = False,
        user: str | None = None,
        on_disk: bool = False,
    ) -> None:
        self._user = user or _user()
        self.folder = Path(tempfile.mkdtemp(prefix=f"lapse-{self.program}-", dir=None if on_disk else quick_folder()))
        if user is not None:
            shutil.chown(self.folder, user)
        self.port = free_port()
        self.socket = self.folder / "s.sock"
        self._environment = {**os.environ, **(environment or {})}
        plugin = ["--plugin-load-add=ha_rocksdb", "--rocksdb-block-cache-size=16M"] if rocksdb else []
        self._options = [*self.unsafe, *plugin, *options]
        self._extra_options: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._install()
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def connect(self, database: str | None = None) -> pymysql.connections.Connection:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            autocommit=True,
            # Without this the driver reads all certificates of the machine first.
            ssl_disabled=True,
        )

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[object, ...]]:
        with self.connect(database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def start(self) -> None:
        with (self.folder / "out.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self.daemon(),
                    f"--user={self._user}",
                    f"--datadir={self.folder / 'data'}",
                    f"--socket={self.socket}",
                    f"--port={self.port}",
                    "--bind-address=127.0.0.1",
                    f"--pid-file={self.folder / 'pid'}",
                    f"--tmpdir={self.folder}",
                    *self._options,
                    *self._extra_options,
                ],
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        self._wait_until_up()

    def daemon(self) -> list[str]:
        if package := fetched():
            share = package.folder / "usr/share/mariadb"
            where = [f"--lc-messages-dir={share}", f"--character-sets-dir={share / 'charsets'}"]
            # Newer ones make a certificate for themselves; a handshake costs more than what most tests then ask.
            return [*package.command(package.program), "--no-defaults", "--skip-ssl", *where]
        found = shutil.which(self.program, path=_PATH)
        assert found is not None
        return [found, "--no-defaults"]

    def load_zone(self, name: str) -> None:
        command = ["mariadb-tzinfo-to-sql", f"/usr/share/zoneinfo/{name}", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        subprocess.run(["mariadb", *self.client_options, "mysql"], input=done.stdout, text=True, check=True)

    def follow(self, primary: MariadbServer) -> None:
        self.execute(
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}, MASTER_USER='root',"
            # From 11.4 on a replica insists on TLS, which these servers have not.
            " MASTER_USE_GTID=slave_pos, MASTER_SSL=0",
            "START REPLICA",
        )

    def catch_up(self, primary: MariadbServer) -> None:
        """Wait until everything that the primary has is here."""
        position = primary.execute("SELECT @@gtid_binlog_pos")[0][0]
        assert self.execute(f"SELECT master_gtid_wait('{position}', 20)") == [(0,)]

    @property
    def client_options(self) -> list[str]:
        return ["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", f"--port={self.port}", "--user=root"]

    def log(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")

    def kill(self) -> None:
        """As a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(STOP_SECONDS)
            self._process = None

    def _install(self) -> None:
        if package := fetched():
            self._bootstrap(package.folder / "usr/share/mariadb")
            return
        installer = shutil.which("mariadb-install-db", path=_PATH)
        assert installer is not None
        done = subprocess.run(
            [
                installer,
                "--no-defaults",
                f"--user={self._user}",
                f"--datadir={self.folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                # Of its own: a server that starts removes temporary tables from the folder that all share.
                f"--tmpdir={self.folder}",
                "--innodb-flush-method=nosync",
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _bootstrap(self, share: Path) -> None:
        """What the installer does, which would start the server without its own loader."""
        (self.folder / "data").mkdir()
        parts = ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;"]
        parts += [(share / name).read_text() for name in BOOTSTRAP]
        options = [f"--user={self._user}", f"--datadir={self.folder / 'data'}", "--bootstrap", *self.unsafe]
        done = subprocess.run([*self.daemon(), *options], input="\n".join(parts), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]

    def _wait_until_up(self) -> None:
        assert self._process is not None
        until = monotonic() + START_SECONDS
        while monotonic() < until:
            if self._process.poll() is not None:
                break
            with suppress(pymysql.err.OperationalError):
                self.connect().close()
                return
            sleep(0.05)
        raise RuntimeError(f"{self.program} did not start:\n{self.log()[-4000:]}")


class MariadbBackend(Backend):
    instant = "TIMESTAMP(3) NULL"
    wall_clock = "DATETIME(3)"
    key_text = "VARCHAR(100)"
    lock = ("LOCK TABLES {t} WRITE",)
    unused_index: ClassVar[tuple[str, str]] = ("IGNORED", "NOT IGNORED")
    """What is said of an index that the server keeps and does not use, and of one that it uses."""

    def __init__(self) -> None:
        self.server = self.start()

    @classmethod
    def start(cls, *options: str, **how: Any) -> MariadbServer:
        """A server for a test that stops it, changes it for good, or needs two."""
        return MariadbServer(*options, **how)

    @classmethod
    def why_not(cls) -> str | None:
        return why_no_server()

    def create(self) -> str:
        name = f"lapse_test_{uuid.uuid4().hex[:12]}"
        self.server.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return f"{self.server.url}/{name}"

    def drop(self, url: str) -> None:
        self.server.execute(f"DROP DATABASE {url.rsplit('/', 1)[1]}")

    def restart(self) -> None:
        self.server.stop()
        self.server.start()

    def cut_connections(self, url: str) -> None:
        """And wait until those that were there are gone; others may come all the time."""
        find = f"SELECT id FROM information_schema.processlist WHERE db = '{url.rpartition('/')[2]}'"
        found = set(self.server.execute(find))
        for (number,) in found:
            with suppress(pymysql.err.MySQLError):
                self.server.execute(f"KILL {number}")
        until = monotonic() + CUT_SECONDS
        while found & set(self.server.execute(find)) and monotonic() < until:
            sleep(0.01)

    def load_zones(self, names: Collection[str]) -> None:
        known = {row[0] for row in self.server.execute("SELECT Name FROM mysql.time_zone_name")}
        for name in sorted(set(names) - known):
            self.server.load_zone(name)

    def close(self) -> None:
        self.server.close()

    def veto(self, table: str, condition: str) -> tuple[str, ...]:
        return (
            f"CREATE TRIGGER keep BEFORE DELETE ON {table} FOR EACH ROW"
            f" IF {condition} THEN SIGNAL SQLSTATE '45000'; END IF",
        )

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"


class WorkerAccount(MariadbBackend):
    """No superuser: an owner who declares, and a worker that may look, and else only what `lapse doctor` asks for."""

    def __init__(self, server: MariadbServer) -> None:
        self.server = server

    def create(self) -> str:
        url = super().create()
        name = url.rpartition("/")[2]
        owner, worker = f"{name}_o", f"{name}_w"
        self.server.execute(
            f"CREATE USER {owner}@'%'",
            f"CREATE USER {worker}@'%'",
            f"GRANT ALL ON {name}.* TO {owner}@'%' WITH GRANT OPTION",
            f"GRANT SELECT ON {name}.* TO {worker}@'%'",
        )
        return url.replace("root@", f"{owner}@")

    def worker_url(self, url: str) -> str:
        return url.replace("_o@", "_w@")

    def drop(self, url: str) -> None:
        super().drop(url)
        name = url.rpartition("/")[2]
        self.server.execute(f"DROP USER {name}_o@'%'", f"DROP USER {name}_w@'%'")


def _user() -> str:
    return "root" if os.geteuid() == 0 else os.environ.get("USER", "mysql")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
