"""Three MariaDB nodes that replicate to each other by Galera, all on this machine."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pymysql

from tests.backends.mariadb import MariadbServer, free_port, why_no_server

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
NODES = 3
JOIN_SECONDS = 60.0


def why_no_cluster() -> str | None:
    if not PROVIDER.exists():
        return "galera-4 is not installed"
    return "rsync is not installed" if shutil.which("rsync") is None else why_no_server()


class GaleraNode(MariadbServer):
    """The first node of a cluster makes the database; the others get a copy of it when they join."""

    def __init__(self, ports: list[int], number: int) -> None:
        self._first = number == 0
        self._peers = ",".join(f"127.0.0.1:{port}" for port in ports)
        transfers, copies = free_port(), free_port()
        provider = ";".join(
            (
                f"base_port={ports[number]}",
                f"gmcast.listen_addr=tcp://127.0.0.1:{ports[number]}",
                f"ist.recv_addr=127.0.0.1:{transfers}",
                "gcache.size=16M",
                # A few write-sets behind are enough to hold the others up, and a dead node is seen soon.
                "gcs.fc_limit=16",
                "evs.keepalive_period=PT0.5S",
                "evs.suspect_timeout=PT2S",
                "evs.inactive_timeout=PT4S",
            )
        )
        super().__init__(
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}",
            f"--wsrep-provider-options={provider}",
            f"--wsrep-node-address=127.0.0.1:{ports[number]}",
            f"--wsrep-node-name=node{number + 1}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{copies}",
            "--wsrep-slave-threads=2",
            # As root rsync would write the copies as nobody.
            user="mysql" if os.geteuid() == 0 else None,
        )

    def start(self) -> None:
        self._extra_options = ["--wsrep-cluster-address=gcomm://" + ("" if self._first else self._peers)]
        self._first = False
        super().start()
        until = monotonic() + JOIN_SECONDS
        while self.state("wsrep_local_state_comment") != "Synced":
            if monotonic() > until:
                raise RuntimeError(f"the node did not join:\n{self.log()[-4000:]}")
            sleep(0.1)

    def state(self, name: str) -> str:
        with suppress(pymysql.err.MySQLError):
            ((_, value),) = self.execute(f"SHOW GLOBAL STATUS LIKE '{name}'")
            return str(value)
        return ""

    def _install(self) -> None:
        if self._first:
            super()._install()
        else:
            data = self.folder / "data"
            data.mkdir()
            shutil.chown(data, self._user)


class GaleraCluster:
    def __init__(self) -> None:
        ports = [free_port() for _ in range(NODES)]
        self.nodes: list[GaleraNode] = []
        try:
            for number in range(NODES):
                self.nodes.append(GaleraNode(ports, number))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.close()
