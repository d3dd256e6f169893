"""A dump of a database with a policy is a script that `lapse sql -f` runs."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from lapse.app import Lapse
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness

PROGRAM = shutil.which("mariadb-dump") or shutil.which("mysqldump")


@pytest.mark.skipif(PROGRAM is None, reason="mariadb-dump is not installed")
def test_a_dump_is_restored_with_its_triggers(h: Harness, server: MariadbServer) -> None:
    assert PROGRAM is not None
    h.sql("CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(20)) WITH (ttl_expire_after = '1 hour')")
    h.sql(r"INSERT INTO t VALUES (1, 'a;b'), (2, 'it''s \\ //')")
    h.sql("CREATE TRIGGER mine BEFORE INSERT ON t FOR EACH ROW BEGIN SET @a = 1; SET @b = 'DELIMITER ;;'; END")
    name = h.url.rpartition("/")[2]
    dump = subprocess.run(
        [PROGRAM, "--no-defaults", "-h", "127.0.0.1", "-P", str(server.port), "-u", "root", "--routines", name],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "DELIMITER ;;" in dump
    server.execute(f"CREATE DATABASE {name}_copy")
    try:
        with Lapse(f"{h.url}_copy") as copy:
            copy.execute(dump)
            assert copy.execute("SELECT id, note FROM t ORDER BY id").rows == ((1, "a;b"), (2, "it's \\ //"))
            ours = sorted(str(row[0]) for row in server.execute("SHOW TRIGGERS", database=name))
            assert "lapse_t_update" in ours and "mine" in ours
            triggers = (
                "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE() ORDER BY 1"
            )
            assert [row[0] for row in copy.execute(triggers).rows] == ours
            assert [str(stored.table) for stored in copy.policies()] == ["t"]
    finally:
        server.execute(f"DROP DATABASE {name}_copy")
