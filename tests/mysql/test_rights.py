"""What accounts need, what they have too much of, and what is the user's and what is Lapse's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from lapse.app import Lapse
from lapse.errors import LapseError, NotPermitted, Unsupported
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness


def _name(h: Harness) -> str:
    return str(make_url(h.url).database)


@pytest.fixture
def account(h: Harness, server: MariadbServer) -> Iterator[str]:
    """The URL of an account that may read the database and nothing else."""
    server.execute(
        "DROP USER IF EXISTS clerk@'%'", "CREATE USER clerk@'%'", f"GRANT SELECT ON {_name(h)}.* TO clerk@'%'"
    )
    yield h.url.replace("root@", "clerk@")
    server.execute("DROP USER IF EXISTS clerk@'%'")


def _follow_doctor(h: Harness, server: MariadbServer, url: str) -> list[str]:
    with Lapse(url, clock=h.clock) as db:
        fixes = [str(finding.fix) for finding in db.doctor() if finding.level == "problem"]
    for fix in fixes:
        server.execute(fix.rstrip(";"))
    return fixes


def test_a_worker_gets_rights_on_its_tables_and_on_nothing_else(
    h: Harness, server: MariadbServer, account: str
) -> None:
    h.events()
    h.sql("CREATE TABLE invoices (id INT PRIMARY KEY)")
    h.insert((1, h.at(days=-2)), (2, h.at()))
    fixes = _follow_doctor(h, server, account)
    assert not any(".*" in fix and "SELECT" not in fix and "*.*" not in fix for fix in fixes)
    with Lapse(account, clock=h.clock) as db:
        assert [finding.text for finding in db.doctor() if finding.level == "problem"] == []
        assert not any("more than a worker needs" in finding.text for finding in db.doctor())
        assert db.run("events").deleted == 1
    rights = {
        (row[0], row[1])
        for row in server.execute(
            "SELECT TABLE_NAME, PRIVILEGE_TYPE FROM information_schema.TABLE_PRIVILEGES"
            f" WHERE GRANTEE = \"'clerk'@'%'\" AND TABLE_SCHEMA = '{_name(h)}' AND TABLE_NAME NOT LIKE 'lapse\\_%'"
        )
    }
    assert rights == {("events", "DELETE")}


def test_doctor_says_what_an_account_has_too_much_of(h: Harness, server: MariadbServer, account: str) -> None:
    h.events()
    server.execute(f"GRANT ALL ON {_name(h)}.* TO clerk@'%'", "GRANT SUPER, FILE, PROCESS ON *.* TO clerk@'%'")
    with Lapse(account, clock=h.clock) as db:
        (text,) = [finding.text for finding in db.doctor() if "more than a worker needs" in finding.text]
    assert "SUPER, FILE on *.*" in text
    assert "PROCESS" not in text
    assert f"on {_name(h).replace('_', chr(92) + '_')}.*" in text or f"on {_name(h)}.*" in text


def test_a_viewer_needs_to_read_only(h: Harness, account: str) -> None:
    h.events()
    h.insert((1, h.at(days=-2)))
    h.run()
    with Lapse(account, clock=h.clock) as db:
        assert len(db.status()) == 1
        assert len(db.history("events")) == 1
        assert db.preview("events")
        with pytest.raises(Exception, match="denied"):
            db.pause("events")


def test_tables_of_the_users_may_begin_like_lapses_own(h: Harness) -> None:
    h.sql("CREATE TABLE lapse_of_memory (id INT PRIMARY KEY, ts DATETIME) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"INSERT INTO lapse_of_memory VALUES (1, {h.at(days=-2)})")
    with h.db.engine.connection() as connection:
        assert [name.name for name in h.db.engine.tables(connection)] == ["lapse_of_memory"]
    assert h.run("lapse_of_memory").deleted == 1


def test_lapses_own_tables_take_no_policy(h: Harness) -> None:
    h.events()
    with pytest.raises(Unsupported, match="system"):
        h.sql("ALTER TABLE lapse_job TTL = created_at + INTERVAL 1 DAY")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM events",
        "CALL wipe()",
        "SELECT wiped()",
        "SELECT 1) AS a; DELETE FROM events; SELECT * FROM (SELECT 1",
        "SELECT 1 INTO OUTFILE '/tmp/lapse-gate'",
        "SET GLOBAL max_connections = 3",
        "DROP TABLE events",
        "TRUNCATE TABLE events",
    ],
)
def test_a_gate_of_the_operators_own_only_reads(h: Harness, server: MariadbServer, sql: str) -> None:
    h.events()
    h.insert((1, h.at()), (2, h.at()))
    server.execute(
        "CREATE PROCEDURE wipe() SQL SECURITY INVOKER BEGIN COMMIT; DELETE FROM events; END",
        "CREATE FUNCTION wiped() RETURNS INT SQL SECURITY INVOKER BEGIN DELETE FROM events; RETURN 0; END",
        database=_name(h),
    )
    with h.db.engine.connection() as connection, pytest.raises(LapseError), h.db.engine.errors():
        h.db.engine.scalar(connection, sql)
    assert h.ids() == [1, 2]
    with h.db.engine.connection() as connection:
        assert (
            h.db.engine.scalar(connection, "WITH n AS (SELECT count(*) AS c FROM events) SELECT c FROM n -- all") == 2
        )


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE visits TTL = ts + INTERVAL 1 DAY",
        "ALTER TABLE visits SET (ttl_expire_after = '1 day')",
        "CREATE TABLE own (id INT PRIMARY KEY, ts TIMESTAMP NULL) TTL = ts + INTERVAL 1 DAY",
    ],
    ids=["alter", "managed", "create"],
)
def test_a_declarer_is_told_what_a_declarer_lacks(
    h: Harness, server: MariadbServer, account: str, statement: str, installed: bool
) -> None:
    """Executable as it is, and enough."""
    h.sql("CREATE TABLE visits (id INT PRIMARY KEY, ts TIMESTAMP NULL)")
    if installed:
        h.events()
    with Lapse(account, clock=h.clock) as db:
        with pytest.raises(NotPermitted) as caught:
            db.execute(statement)
        for grant in str(caught.value.hint).split("; "):
            server.execute(grant.rstrip(";"))
    with Lapse(account, clock=h.clock) as db:
        db.execute(statement)
        assert len(db.policies()) == 1 + installed


def test_what_a_gauge_lacks_can_be_granted_as_it_is(h: Harness, server: MariadbServer, account: str) -> None:
    h.events()
    with Lapse(account, clock=h.clock) as db:
        blind = [reading for reading in db.gauges() if reading.value is None and "GRANT" in str(reading.note)]
        assert {reading.name for reading in blind} >= {"replica lag"}
    for reading in blind:
        server.execute(str(reading.note).rstrip(";"))
    with Lapse(account, clock=h.clock) as db:
        assert not [reading for reading in db.gauges() if reading.value is None]
