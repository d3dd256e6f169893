"""A worker's role needs few privileges, and `lapse doctor` says which are missing."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from lapse.app import Lapse
from lapse.errors import DatabaseError, NotPermitted, TableNotFound
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus, PathKind
from tests.backends.postgres import WorkerRole
from tests.conformance.harness import Harness, grant_what_doctor_prints
from tests.conftest import Servers

WORKER = "lapse_worker_role"


@pytest.fixture
def worker_url(h: Harness) -> Iterator[str]:
    """A role that may log in and nothing else."""
    h.sql(f"DO $$ BEGIN CREATE ROLE {WORKER} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    h.sql("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    yield h.url.replace("postgres@", f"{WORKER}@")
    h.sql(f"DROP OWNED BY {WORKER}")


@pytest.fixture
def roles(servers: Servers) -> Iterator[Harness]:
    """Declared by an owner, run by a worker; neither is a superuser."""
    backend = servers.get("postgres15-role")
    url = backend.create()
    harness = Harness(backend, url)
    yield harness
    harness.close()
    backend.drop(url)


def test_doctor_leads_to_exactly_the_grants_that_a_worker_needs(h: Harness, worker_url: str) -> None:
    h.events()
    h.sql("CREATE TABLE child (parent BIGINT REFERENCES events); CREATE INDEX ON child (parent)")
    h.insert((1, h.at(days=-2)), (2, h.at(days=-2)), (3, h.at()))
    h.sql("INSERT INTO child VALUES (2)")
    with Lapse(worker_url, clock=h.clock) as worker:
        with pytest.raises(DatabaseError) as caught:
            worker.run()
        assert caught.value.hint is not None
        h.sql(caught.value.hint.replace("<role>", WORKER))
        for _ in range(5):
            lacking = [finding for finding in worker.doctor() if finding.level == "problem"]
            if not lacking:
                break
            for finding in lacking:
                assert finding.fix is not None
                h.sql(finding.fix.replace("<role>", WORKER))
        (job,) = worker.run().jobs
    assert (job.status, job.counts.deleted, job.counts.held) == (JobStatus.FINISHED, 1, 1)
    assert h.rows(f"SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = '{WORKER}'") == [(False, False)]
    on_tables = (
        "SELECT table_name, privilege_type FROM information_schema.role_table_grants"
        f" WHERE grantee = '{WORKER}' AND table_schema <> 'lapse_ttl'"
    )
    assert h.rows(on_tables) == []
    with psycopg.connect(worker_url) as thief, pytest.raises(psycopg.errors.InsufficientPrivilege):
        thief.execute("DELETE FROM events")


def test_the_worker_sees_what_the_table_hides(h: Harness, worker_url: str) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_hide_expired = 'policy')")
    h.insert((1, h.at(days=-2)), (2, "'2999-01-01'"))
    with Lapse(worker_url, clock=h.clock) as worker:
        grant_what_doctor_prints(h.owner, worker)
        assert worker.preview("events")[0].survey.expired == 1
        assert worker.run().deleted == 1
        assert not [finding for finding in worker.doctor() if finding.level == "problem"]


def test_rows_that_policies_hide_from_their_owner_block_the_table(roles: Harness) -> None:
    roles.events()
    roles.insert((1, roles.at(days=-2)), (2, roles.at(days=-2)))
    roles.sql("ALTER TABLE events ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON events USING (id <> 2)")
    # The owner is not subject to its own policies.
    assert roles.run_one().counts.deleted == 2
    roles.insert((1, roles.at(days=-2)), (2, roles.at(days=-2)))
    roles.sql("ALTER TABLE events FORCE ROW LEVEL SECURITY")
    (fix,) = [finding.fix for finding in roles.db.doctor() if "row security" in finding.text]
    result = roles.run()
    assert result.failed
    assert [skip.blocked for skip in result.skipped] == [BlockCode.ROW_SECURITY]
    assert roles.rows("SELECT count(*) FROM events WHERE id = 1") == [(1,)]
    roles.sql(str(fix))
    assert roles.run_one().counts.deleted == 2


def test_an_owner_without_other_rights_declares(h: Harness) -> None:
    h.sql("DO $$ BEGIN CREATE ROLE app_owner LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    name = h.url.rpartition("/")[2]
    h.sql(f"GRANT CREATE ON DATABASE {name} TO app_owner; GRANT ALL ON SCHEMA public TO app_owner")
    with Lapse(h.url.replace("postgres@", "app_owner@"), clock=h.clock) as owner:
        owner.execute("CREATE TABLE events (id INTEGER) WITH (ttl_expire_after = '1 day', ttl_hide_expired = 'policy')")
        owner.execute("INSERT INTO events VALUES (1); UPDATE events SET id = 2")
        assert owner.run().complete
        assert not [finding for finding in owner.doctor() if finding.level == "problem"]
        owner.execute("DROP TABLE events")
    with psycopg.connect(h.url, autocommit=True) as admin:
        admin.execute("DROP OWNED BY app_owner")


def admin(h: Harness, backend: WorkerRole) -> psycopg.Connection:
    return psycopg.connect(backend.cluster.url(h.url.rpartition("/")[2]), autocommit=True)


def test_a_comment_of_another_owners_is_a_proposal_until_it_is_accepted(roles: Harness) -> None:
    roles.events()
    roles.sql("CREATE TABLE notes (id INTEGER, ts TIMESTAMPTZ)")
    roles.insert((1, roles.at(days=-2)), (2, roles.at()), table="notes")
    with psycopg.connect(roles.url, autocommit=True) as client:
        client.execute("COMMENT ON TABLE notes IS 'ttl_duration=86400;ttl_col=ts;'")
    assert {str(job.table) for job in roles.db.run().jobs} == {"public.events"}
    with pytest.raises(NotPermitted, match="belongs to"):
        roles.db.accept("notes")
    roles.owner.accept("notes")
    roles._may_lack_grants = True
    assert {str(job.table) for job in roles.db.run().jobs} == {"public.notes"}
    assert roles.ids("notes") == [2]


def test_partitions_are_dropped_with_the_owners_rights(roles: Harness) -> None:
    roles.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ) PARTITION BY RANGE (ts) TTL = ts + INTERVAL 1 DAY")
    roles.sql("CREATE TABLE old PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')")
    roles.insert((1, "'2026-01-10'"))
    assert roles.run_one().path.kind is PathKind.PHYSICAL
    roles.insert((2, "'2026-01-10'"))
    roles.owner.execute("ALTER TABLE events SET (ttl_partition_drop = 'on')")
    job = roles.run_one()
    assert (job.path.kind, job.status, job.counts.deleted) == (PathKind.PARTITION, JobStatus.FINISHED, 1)
    assert roles.rows("SELECT to_regclass('old')") == [(None,)]


def test_a_leaf_of_another_owner_blocks_its_table(roles: Harness) -> None:
    backend = roles.backend
    assert isinstance(backend, WorkerRole)
    roles.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ) PARTITION BY RANGE (ts) TTL = ts + INTERVAL 1 DAY")
    for name, month in (("old", 1), ("new", 2)):
        bounds = f"FOR VALUES FROM ('2026-0{month}-01') TO ('2026-0{month + 1}-01')"
        roles.sql(f"CREATE TABLE {name} PARTITION OF events {bounds}")
    roles.insert((1, "'2026-01-10'"), (2, "'2026-02-10'"))
    with admin(roles, backend) as connection:
        connection.execute("ALTER TABLE old OWNER TO postgres")
    result = roles.run()
    assert {skip.blocked for skip in result.skipped} == {BlockCode.PRIVILEGE}
    assert "partition old belongs to postgres" in result.skipped[0].reason
    with admin(roles, backend) as connection:
        assert connection.execute("SELECT id FROM events ORDER BY id").fetchall() == [(1,), (2,)]
        connection.execute(result.skipped[0].reason.partition("; ")[2])
    roles.run()
    assert roles.ids() == []


def test_partitions_with_rules_of_their_own_are_run_with_the_owners_rights(roles: Harness) -> None:
    """By another column than the rest of the table."""
    roles.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ, seen TIMESTAMPTZ) PARTITION BY LIST (id)")
    for name, number in (("p1", 1), ("p2", 2)):
        roles.sql(f"CREATE TABLE {name} PARTITION OF events FOR VALUES IN ({number})")
    roles.sql("COMMENT ON TABLE events IS 'ttl_duration=86400;ttl_col=ts;p1_ttl_duration=3600;p1_ttl_col=seen;'")
    fresh, old = roles.at(), roles.at(days=-2)
    values = ", ".join(f"({number}, {ts}, {seen})" for number in (1, 2) for ts, seen in ((fresh, old), (old, fresh)))
    roles.sql(f"INSERT INTO events VALUES {values}")
    result = roles.run()
    assert sorted((job.table.partition, job.counts.deleted) for job in result.jobs) == [("p1", 1), ("p2", 1)]
    assert roles.rows("SELECT id, ts < seen FROM events ORDER BY id") == [(1, True), (2, False)]


def test_a_partition_that_a_view_needs_is_held(roles: Harness) -> None:
    roles.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ) PARTITION BY RANGE (ts) TTL = ts + INTERVAL 1 DAY")
    roles.sql("CREATE TABLE old PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')")
    roles.sql("ALTER TABLE events SET (ttl_partition_drop = 'on')")
    roles.insert((1, "'2026-01-10'"))
    roles.sql("CREATE VIEW look AS SELECT * FROM old")
    job = roles.run_one()
    assert (job.status, job.counts.deleted, job.counts.held) == (JobStatus.FINISHED, 0, 1)
    assert roles.ids() == [1]


def test_a_users_function_of_that_name_is_not_dropped(h: Harness) -> None:
    h.events()
    h.sql("CREATE FUNCTION lapse_ttl_123() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    h.sql("DROP TABLE events")
    assert h.rows("SELECT lapse_ttl_123()") == [(1,)]
    assert h.rows("SELECT count(*) FROM pg_proc WHERE proname ~ '^lapse_ttl_[0-9]+$' AND pronargs = 7") == [(0,)]


@pytest.mark.parametrize("installed", [False, True])
def test_a_declarer_is_told_what_a_declarer_lacks(h: Harness, worker_url: str, installed: bool) -> None:
    """Executable as it is, and enough; nothing of what a worker needs."""
    if installed:
        h.events()
    h.sql(f"GRANT USAGE ON SCHEMA public TO {WORKER}")
    statement = "CREATE TABLE own (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ) TTL = ts + INTERVAL 1 DAY"
    hints = []
    for _ in range(3):
        with Lapse(worker_url, clock=h.clock) as db:
            try:
                db.execute(statement)
                break
            except NotPermitted as error:
                hints.append(str(error.hint))
                h.sql(str(error.hint))
    assert hints[0] == f"GRANT CREATE ON SCHEMA public TO {WORKER};"
    assert len(hints) == 2
    with Lapse(worker_url, clock=h.clock) as db:
        assert [stored.table.name for stored in db.policies()] == ["events"] * installed + ["own"]


def test_who_is_not_the_owner_is_told_so(h: Harness, worker_url: str) -> None:
    h.events()
    h.sql(f"GRANT USAGE ON SCHEMA public TO {WORKER}")
    with Lapse(worker_url, clock=h.clock) as db:
        with pytest.raises(NotPermitted, match="belongs to postgres") as caught:
            db.execute("ALTER TABLE events TTL = ts + INTERVAL 2 DAY")
        assert caught.value.hint == "do this as postgres, or as a role that is a member of it"
        with pytest.raises(TableNotFound, match="no table event in this database"):
            db.execute("ALTER TABLE event TTL = ts + INTERVAL 2 DAY")
