"""MySQL: a private server from the packages that `make servers` fetches, or the one that LAPSE_TEST_MYSQL_URL names.

`LAPSE_TEST_MYSQL_URL=mysql://user:password@host:port` runs everything that needs no server of its own against it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
from sqlalchemy import make_url

from tests.backends.mariadb import MariadbBackend, MariadbServer
from tests.backends.packages import PACKAGES

VARIABLE = "LAPSE_TEST_MYSQL_URL"
PACKAGE = PACKAGES["mysql"]
FIRST_STATEMENTS = """\
CREATE USER root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
GRANT PROXY ON ''@'' TO root@'127.0.0.1' WITH GRANT OPTION;
"""
"""One a line: the server reads them so."""


class MysqlServer(MariadbServer):
    """Begins as a copy of a data directory that is initialised once."""

    program = "mysqld"
    drops_triggers = True
    isolation = "transaction_isolation"
    logging = ("--log-bin=log", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--binlog-rows-query-log-events=ON")
    unsafe = (
        "--innodb-buffer-pool-size=64M",
        "--innodb-redo-log-capacity=32M",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=OFF",
        "--innodb-flush-method=nosync",
        "--sync-binlog=0",
        "--skip-log-bin",
        "--skip-name-resolve",
        "--mysqlx=0",
        # A handshake costs more than what most tests then ask.
        "--tls-version=",
        "--secure-file-priv=",
        "--max-connections=200",
        "--table-open-cache=400",
    )

    def daemon(self) -> list[str]:
        return daemon()

    def load_zone(self, name: str) -> None:
        sql = PACKAGE.command("usr/bin/mysql_tzinfo_to_sql")
        done = subprocess.run([*sql, f"/usr/share/zoneinfo/{name}", name], capture_output=True, text=True, check=True)
        client = [*PACKAGE.command("usr/bin/mysql"), *self.client_options]
        subprocess.run([*client, "mysql"], input=done.stdout, text=True, check=True)

    def follow(self, primary: MariadbServer) -> None:
        self.execute(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={primary.port}, SOURCE_USER='root',"
            " SOURCE_AUTO_POSITION=1, SOURCE_SSL=0, GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1",
            "START REPLICA",
        )

    def catch_up(self, primary: MariadbServer) -> None:
        position = str(primary.execute("SELECT @@global.gtid_executed")[0][0])
        waited = self.execute(f"SELECT wait_for_executed_gtid_set('{position}', 60)")
        assert waited == [(0,)], self.execute("SHOW REPLICA STATUS")

    def _install(self) -> None:
        shutil.copytree(_template(), self.folder / "data")


def daemon() -> list[str]:
    usr = PACKAGE.folder / "usr"
    return [
        *PACKAGE.command(PACKAGE.program),
        "--no-defaults",
        f"--basedir={usr}",
        f"--lc-messages-dir={usr / 'share/mysql'}",
        f"--character-sets-dir={usr / 'share/mysql/charsets'}",
        f"--plugin-dir={usr / 'lib/mysql/plugin'}",
    ]


def _template() -> Path:
    """A data directory, beside the packages, without the number that tells servers apart."""
    found = PACKAGE.folder.with_name(f"{PACKAGE.folder.name}-data")
    if found.exists():
        return found
    work = Path(tempfile.mkdtemp(prefix="initialising-", dir=found.parent))
    try:
        (work / "first.sql").write_text(FIRST_STATEMENTS)
        options = ["--initialize-insecure", f"--datadir={work / 'data'}", f"--init-file={work / 'first.sql'}"]
        user = ["--user=root"] if os.geteuid() == 0 else []
        done = subprocess.run([*daemon(), *user, *options, *MysqlServer.unsafe], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"mysqld cannot be initialised:\n{done.stderr[-4000:]}")
        (work / "data" / "auto.cnf").unlink(missing_ok=True)
        # Another process may have been quicker.
        with suppress(OSError):
            (work / "data").rename(found)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return found


class GivenServer(MariadbServer):
    """Someone else's: nothing is started, stopped or restarted."""

    isolation = MysqlServer.isolation

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self.port = self._url.port or 3306

    @property
    def url(self) -> str:
        return self._url.set(database=None).render_as_string(hide_password=False).rstrip("/")

    def connect(self, database: str | None = None) -> pymysql.connections.Connection:
        url = self._url
        who = {"user": url.username, "password": url.password or ""}
        return pymysql.connect(host=url.host, port=self.port, database=database, autocommit=True, **who)

    def load_zone(self, name: str) -> None:
        raise NotImplementedError("load the zones of the given server yourself")

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class MysqlBackend(MariadbBackend):
    unused_index = ("INVISIBLE", "VISIBLE")

    def __init__(self) -> None:
        given = os.environ.get(VARIABLE)
        self.server = GivenServer(given) if given else self.start()

    @classmethod
    def start(cls, *options: str, **how: Any) -> MariadbServer:
        return MysqlServer(*options, **how)

    @classmethod
    def why_not(cls) -> str | None:
        return None if os.environ.get(VARIABLE) else PACKAGE.why_not()
