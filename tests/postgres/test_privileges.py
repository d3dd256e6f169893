"""A worker's role needs few privileges, and `lapse doctor` says which are missing."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from lapse.app import Lapse
from lapse.errors import DatabaseError
from lapse.model.job import JobStatus, PathKind
from tests.backends.postgres import WorkerRole
from tests.conformance.harness import Harness
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
    granted = h.rows(
        f"SELECT privilege_type FROM information_schema.role_table_grants WHERE grantee = '{WORKER}'"
        " AND table_name = 'events' ORDER BY 1"
    )
    assert granted == [("DELETE",), ("SELECT",), ("UPDATE",)]


def test_the_worker_sees_what_the_table_hides(h: Harness, worker_url: str) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_hide_expired = 'policy')")
    h.insert((1, h.at(days=-2)), (2, "'2999-01-01'"))
    h.sql(
        f"GRANT USAGE ON SCHEMA public, lapse TO {WORKER}; GRANT SELECT, UPDATE, DELETE ON events TO {WORKER};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lapse TO {WORKER};"
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA lapse TO {WORKER}"
    )
    with Lapse(worker_url, clock=h.clock) as worker:
        assert worker.preview("events")[0].survey.expired == 1
        assert worker.run().deleted == 1
        assert not [finding for finding in worker.doctor() if finding.level == "problem"]


def test_rows_that_other_policies_hide_are_pointed_out(h: Harness, worker_url: str) -> None:
    h.events()
    h.sql("ALTER TABLE events ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON events USING (id <> 2)")
    h.sql(
        f"GRANT USAGE ON SCHEMA public, lapse TO {WORKER}; GRANT SELECT, UPDATE, DELETE ON events TO {WORKER};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lapse TO {WORKER};"
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA lapse TO {WORKER}"
    )
    with Lapse(worker_url, clock=h.clock) as worker:
        assert any("row security" in finding.text for finding in worker.doctor())


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


@pytest.mark.parametrize("comment", ["ttl_duration=86400;ttl_col=ts;", "ttl_expire_after=1 day;"])
def test_what_a_comment_asks_for_may_need_grants_too(roles: Harness, comment: str) -> None:
    """A worker finds it, and may not even read the table; doctor says what it lacks, until nothing is lacking."""
    backend = roles.backend
    assert isinstance(backend, WorkerRole)
    roles.events()
    roles.sql("CREATE TABLE notes (id INTEGER, ts TIMESTAMPTZ)")
    roles.insert((1, roles.at(days=-2)), (2, roles.at()), table="notes")
    worker = roles.open()
    (name,) = worker.execute("SELECT current_user").rows[0]
    with admin(roles, backend) as connection:
        connection.execute(f"COMMENT ON TABLE notes IS '{comment}'")
        for _ in range(4):
            fixes = [each.fix for each in worker.doctor() if each.level == "problem"]
            for fix in fixes:
                assert fix is not None
                assert fix.startswith("GRANT")
                connection.execute(fix.replace("<role>", name))
            if not fixes:
                break
    assert not fixes
    assert {str(job.table) for job in worker.run().jobs} == {"public.events", "public.notes"}
    worker.close()


def test_partitions_are_dropped_by_a_worker_that_acts_for_the_owner(roles: Harness) -> None:
    backend = roles.backend
    assert isinstance(backend, WorkerRole)
    roles.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ) PARTITION BY RANGE (ts) TTL = ts + INTERVAL 1 DAY")
    roles.sql("CREATE TABLE old PARTITION OF events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')")
    roles.insert((1, "'2026-01-10'"))
    assert roles.run_one().path.kind is PathKind.PHYSICAL
    roles.insert((2, "'2026-01-10'"))
    roles.owner.execute("ALTER TABLE events SET (ttl_partition_drop = 'on')")
    (fix,) = [each.fix for each in roles.db.doctor() if each.level == "problem"]
    with admin(roles, backend) as connection:
        connection.execute(fix or "")
    job = roles.run_one()
    assert (job.path.kind, job.status, job.counts.deleted) == (PathKind.PARTITION, JobStatus.FINISHED, 1)
    assert roles.rows("SELECT to_regclass('old')") == [(None,)]
