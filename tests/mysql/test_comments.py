"""Policies in table comments, where tables have no owners."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from lapse.app import Lapse
from lapse.errors import NotFound, NotPermitted
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness
from tests.mysql.numbers import numbers

PROPOSAL = "ttl_duration=60;ttl_col=at;"


def name_of(h: Harness) -> str:
    return str(make_url(h.url).database)


def visits(h: Harness, server: MariadbServer, comment: str, *, expired: int = 1, suffix: str = "") -> None:
    now = int(h.now.timestamp())
    server.execute(
        f"CREATE TABLE visits (id INT PRIMARY KEY, at BIGINT UNSIGNED NOT NULL) COMMENT='{comment}' {suffix}",
        f"INSERT INTO visits SELECT seq, {now - 60} FROM {numbers(expired)}",
        f"INSERT INTO visits SELECT 1000000 + seq, {now - 59} FROM {numbers(expired)}",
        database=name_of(h),
    )


@pytest.mark.parametrize("suffix", ["", "WITH SYSTEM VERSIONING"])
def test_a_comment_of_any_client_is_a_proposal(h: Harness, server: MariadbServer, suffix: str) -> None:
    if suffix and not h.features.keeps_history:
        pytest.skip("no table is system-versioned")
    visits(h, server, PROPOSAL, suffix=suffix)
    result = h.run(None)
    assert (result.deleted, result.complete, len(result.proposals)) == (0, True, 1)
    with pytest.raises(NotFound, match="not obeyed"):
        h.run("visits")
    h.db.accept("visits")
    assert h.run("visits").deleted == 1
    h.sql("ALTER TABLE visits RESET (ttl)")
    assert "ttl_duration" not in str(h.rows("SHOW CREATE TABLE visits"))
    assert h.db.comments() == []


def test_a_setting_obeys_every_comment(h: Harness, server: MariadbServer) -> None:
    visits(h, server, PROPOSAL)
    h.db.set_setting("lapse_trusted_owners", "root")
    assert h.run(None).deleted == 0
    h.db.set_setting("lapse_trusted_owners", "*")
    assert h.run(None).deleted == 1


def test_who_may_alter_but_not_delete_empties_nothing(h: Harness, server: MariadbServer) -> None:
    visits(h, server, "", expired=2000)
    h.sql("CREATE TABLE other (id INT PRIMARY KEY, ts DATETIME) TTL = ts + INTERVAL 1 DAY")
    database = name_of(h)
    server.execute(
        "DROP USER IF EXISTS alterer@'%'",
        "CREATE USER alterer@'%' IDENTIFIED BY 'secret'",
        f"GRANT SELECT, INSERT, ALTER ON {database}.* TO alterer@'%'",
    )
    account = str(make_url(h.url).set(username="alterer", password="secret").render_as_string(hide_password=False))
    with Lapse(account, clock=h.clock) as alterer:
        for text in (f"{PROPOSAL}ttl_guard=off;", PROPOSAL):
            with alterer.engine.connection() as connection:
                connection.exec_driver_sql(f"ALTER TABLE visits COMMENT = '{text}'")
            assert h.run(None).deleted == 0
            h.advance(days=1)
            assert h.run(None).deleted == 0
        with pytest.raises(NotPermitted):
            alterer.accept("visits")
    assert h.rows("SELECT count(*) FROM visits") == [(4000,)]
    assert [str(stored.table) for stored in h.db.policies()] == ["other"]


def test_an_accepted_policy_stops_when_its_comment_is_changed(h: Harness, server: MariadbServer) -> None:
    visits(h, server, "ttl_duration=86400;ttl_col=at;")
    h.db.accept("visits")
    server.execute("ALTER TABLE visits COMMENT = 'ttl_duration=1;ttl_col=at;'", database=name_of(h))
    h.advance(hours=1)
    assert h.run(None).failed
    assert h.ids("visits") == [1, 1000001]
    (status,) = h.db.status()
    assert (status.state, status.blocked) == ("blocked", "comment")
    server.execute("ALTER TABLE visits COMMENT = 'ttl_col=at;ttl_duration=86400;'", database=name_of(h))
    h.advance(hours=25)
    h.db.confirm("visits")
    assert h.run(None).deleted == 2


def test_a_table_behind_a_lock_delays_no_other(h: Harness, server: MariadbServer) -> None:
    visits(h, server, PROPOSAL)
    server.execute("CREATE TABLE notes (id INT PRIMARY KEY) COMMENT 'ttl_expire_after=1 day;'", database=name_of(h))
    h.db.set_setting("lapse_trusted_owners", "*")
    with h.owner.engine.connection() as reader, h.owner.engine.atomic(reader):
        reader.exec_driver_sql("SELECT * FROM notes")
        result = h.run(None)
        assert result.deleted == 1
        assert [str(skip.table) for skip in result.skipped] == ["notes"]
    assert h.run(None).complete
