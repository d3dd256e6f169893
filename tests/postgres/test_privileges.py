"""A worker's role needs few privileges, and `lapse doctor` says which are missing."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from lapse.app import Lapse
from lapse.errors import DatabaseError
from lapse.model.job import JobStatus
from tests.conformance.harness import Harness

WORKER = "lapse_worker_role"


@pytest.fixture
def worker_url(h: Harness) -> Iterator[str]:
    """A role that may log in and nothing else."""
    h.sql(f"DO $$ BEGIN CREATE ROLE {WORKER} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    h.sql("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    yield h.url.replace("postgres@", f"{WORKER}@")
    h.sql(f"DROP OWNED BY {WORKER}")


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
