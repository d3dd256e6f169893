"""Attacks: a table's owner, a squatter, a thief of the worker's password and a writer of the catalog gain nothing.

`mallory` owns tables and may create schemas; `keeper` is the worker and keeps the catalog, with the grants that
`lapse doctor` prints; `alice` owns the table that must not lose a live row. None is a superuser.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from lapse.app import Lapse
from lapse.errors import Blocked, CatalogError, NotPermitted
from lapse.model.blocked import BlockCode
from lapse.model.job import JobStatus
from tests.backends import Backend
from tests.backends.postgres import PostgresBackend
from tests.conformance.harness import grant_what_doctor_prints
from tests.conftest import Servers
from tests.postgres.conftest import VERSIONS

OLD, FRESH = "'2020-01-01'", "now()"


@dataclass(frozen=True, kw_only=True)
class Stage:
    backend: PostgresBackend
    database: str

    def url(self, role: str) -> str:
        return self.backend.cluster.url(self.database, self.role(role))

    def role(self, name: str) -> str:
        return "postgres" if name == "postgres" else f"{name}_{self.database}"

    def sql(self, role: str, text: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url(role), autocommit=True) as connection:
            cursor = connection.execute(text)
            return list(cursor.fetchall()) if cursor.description else []

    def declare(self, role: str, *statements: str) -> None:
        with Lapse(self.url(role)) as owner:
            for statement in statements:
                owner.execute(statement)


@pytest.fixture
def stage(servers: Servers) -> Iterator[Stage]:
    yield from _set(servers.get(VERSIONS[0]))


@pytest.fixture(params=VERSIONS)
def each_stage(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Stage]:
    """Every version, for what happens at the commit."""
    yield from _set(servers.get(request.param))


def _set(backend: Backend) -> Iterator[Stage]:
    assert isinstance(backend, PostgresBackend)
    url = backend.create()
    made = Stage(backend=backend, database=url.rpartition("/")[2])
    for name in ("alice", "mallory", "keeper"):
        made.sql("postgres", f"CREATE ROLE {made.role(name)} LOGIN")
        made.sql("postgres", f"CREATE SCHEMA {name} AUTHORIZATION {made.role(name)}")
        made.sql("postgres", f"ALTER ROLE {made.role(name)} SET search_path = {name}")
        made.sql("postgres", f"GRANT CREATE ON DATABASE {made.database} TO {made.role(name)}")
    # The worker keeps the catalog; owners may write to it, as declaring takes.
    made.declare("keeper", "CREATE TABLE keeper.own (id INTEGER, at TIMESTAMPTZ) TTL = at + INTERVAL 1 DAY")
    for name in ("alice", "mallory"):
        made.sql(
            "keeper",
            f"GRANT USAGE ON SCHEMA lapse_ttl TO {made.role(name)};"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lapse_ttl TO {made.role(name)};"
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA lapse_ttl TO {made.role(name)}",
        )
    yield made
    backend.drop(url)
    for name in ("alice", "mallory", "keeper"):
        made.backend._admin.execute(f"DROP ROLE {made.role(name)}")


def table(stage: Stage, owner: str, name: str = "events", *, ttl: str = "TTL = at + INTERVAL 1 DAY") -> None:
    """A table with an expired and a live row, which the worker may run."""
    stage.declare(
        owner,
        f"CREATE TABLE {owner}.{name} (id INTEGER PRIMARY KEY, at TIMESTAMPTZ) {ttl}",
        f"INSERT INTO {owner}.{name} VALUES (1, {OLD}), (2, {FRESH})",
    )
    allow(stage, owner)


def allow(stage: Stage, owner: str) -> None:
    """What doctor tells the worker to ask the owner for."""
    with Lapse(stage.url("keeper")) as worker, Lapse(stage.url(owner)) as declarer:
        grant_what_doctor_prints(declarer, worker)


def run(stage: Stage, name: str) -> JobStatus | str:
    with Lapse(stage.url("keeper")) as worker:
        result = worker.run(name)
    return result.jobs[0].status if result.jobs else str(result.skipped[0].blocked)


def ids(stage: Stage, name: str) -> list[object]:
    return [row[0] for row in stage.sql("postgres", f"SELECT id FROM {name} ORDER BY id")]


def test_without_an_attack_the_worker_deletes_what_has_expired_and_has_no_right_on_the_table(stage: Stage) -> None:
    table(stage, "alice")
    assert run(stage, "alice.events") is JobStatus.FINISHED
    assert ids(stage, "alice.events") == [2]
    for statement in ("DELETE FROM alice.events", "SELECT * FROM alice.events", "UPDATE alice.events SET at = NULL"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            stage.sql("keeper", statement)


TRIGGER = """
    CREATE FUNCTION mallory.attack() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO mallory.seen VALUES (current_user);
        {body}
        RETURN OLD;
    END $$"""


def as_mallory(stage: Stage, body: str, trigger: str = "BEFORE DELETE ON mallory.events FOR EACH ROW") -> None:
    stage.sql("mallory", "CREATE TABLE mallory.seen (who TEXT)")
    stage.sql("mallory", TRIGGER.format(body=body))
    kind = "CONSTRAINT TRIGGER" if "DEFERRABLE" in trigger else "TRIGGER"
    stage.sql("mallory", f"CREATE {kind} attack {trigger} EXECUTE FUNCTION mallory.attack()")


def who(stage: Stage) -> set[object]:
    return {row[0] for row in stage.sql("postgres", "SELECT who FROM mallory.seen")}


def test_a_trigger_runs_as_the_owner(stage: Stage) -> None:
    table(stage, "mallory")
    as_mallory(stage, "")
    assert run(stage, "mallory.events") is JobStatus.FINISHED
    assert who(stage) == {stage.role("mallory")}


@pytest.mark.parametrize("command", ["RESET ROLE", "RESET SESSION AUTHORIZATION", "SET ROLE {keeper}"])
def test_a_trigger_cannot_become_the_worker(stage: Stage, command: str) -> None:
    table(stage, "mallory")
    as_mallory(stage, command.format(keeper=stage.role("keeper")) + ";")
    run(stage, "mallory.events")
    assert who(stage) <= {stage.role("mallory")}
    assert ids(stage, "mallory.events") == [1, 2]


def test_a_deferred_trigger_runs_as_the_owner(each_stage: Stage) -> None:
    stage = each_stage
    table(stage, "mallory")
    as_mallory(stage, "", "AFTER DELETE ON mallory.events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW")
    status = run(stage, "mallory.events")
    assert who(stage) <= {stage.role("mallory")}
    if stage.sql("postgres", "SHOW server_version_num")[0][0] >= "180000":  # type: ignore[operator]
        assert status is JobStatus.FINISHED


def test_a_trigger_that_defers_another_one_until_the_commit(each_stage: Stage) -> None:
    stage = each_stage
    table(stage, "mallory")
    stage.sql("mallory", "CREATE TABLE mallory.later (id INTEGER)")
    as_mallory(stage, "SET CONSTRAINTS ALL DEFERRED; INSERT INTO mallory.later VALUES (1);")
    stage.sql(
        "mallory",
        "CREATE FUNCTION mallory.late() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO mallory.seen VALUES (current_user); RETURN NULL; END $$;"
        " CREATE CONSTRAINT TRIGGER late AFTER INSERT ON mallory.later DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION mallory.late()",
    )
    run(stage, "mallory.events")
    assert who(stage) <= {stage.role("mallory")}


def test_a_cursor_that_is_read_at_the_commit(each_stage: Stage) -> None:
    stage = each_stage
    table(stage, "mallory")
    stage.sql(
        "mallory",
        "CREATE FUNCTION mallory.read() RETURNS integer LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO mallory.seen VALUES (current_user); RETURN 1; END $$",
    )
    as_mallory(stage, "EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT mallory.read()';")
    run(stage, "mallory.events")
    assert who(stage) <= {stage.role("mallory")}


def test_what_a_trigger_leaves_in_the_session(stage: Stage) -> None:
    """A search path, an operator and a temporary view that the worker's next statements would find."""
    table(stage, "mallory")
    table(stage, "alice")
    stage.sql("mallory", "GRANT USAGE ON SCHEMA mallory TO PUBLIC; CREATE TABLE mallory.caught (who TEXT)")
    stage.sql("mallory", "GRANT INSERT ON mallory.caught TO PUBLIC")
    for left, right in (("bigint", "integer"), ("bigint", "bigint"), ("text", "text"), ("varchar", "varchar")):
        name = f"eq_{left}_{right}"
        stage.sql(
            "mallory",
            f"CREATE FUNCTION mallory.{name}({left}, {right}) RETURNS boolean LANGUAGE plpgsql AS"
            " $$ BEGIN INSERT INTO mallory.caught VALUES (current_user); RETURN $1 OPERATOR(pg_catalog.=) $2; END $$;"
            f" CREATE OPERATOR mallory.= (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = mallory.{name})",
        )
    stage.sql(
        "mallory",
        "CREATE FUNCTION mallory.peek() RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO mallory.caught VALUES (current_user); RETURN 'x'; END $$",
    )
    as_mallory(
        stage,
        "PERFORM set_config('search_path', 'mallory, pg_catalog', false);"
        "CREATE TEMP VIEW pg_stat_activity AS SELECT mallory.peek() AS state;"
        "CREATE TEMP VIEW pg_class AS SELECT mallory.peek() AS relname;",
    )
    with Lapse(stage.url("keeper")) as worker:
        worker.run("mallory.events")
        worker.run("alice.events")
        worker.run()
    assert stage.role("keeper") not in {row[0] for row in stage.sql("postgres", "SELECT who FROM mallory.caught")}
    assert ids(stage, "alice.events") == [2]


def test_what_belongs_to_the_table_is_never_planned_or_read_with_the_workers_rights(stage: Stage) -> None:
    """Row security, partial indexes and checks call functions of the owner's, some while a query is planned."""
    table(stage, "mallory")
    stage.sql("mallory", "CREATE TABLE mallory.seen (who TEXT); GRANT USAGE ON SCHEMA mallory TO PUBLIC")
    stage.sql("mallory", "GRANT INSERT ON mallory.seen TO PUBLIC")
    stage.sql(
        "mallory",
        "CREATE FUNCTION mallory.note() RETURNS boolean LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO mallory.seen VALUES (current_user); RETURN true; END $$;"
        "CREATE FUNCTION mallory.spy() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN RETURN mallory.note(); END $$",
    )
    # In the dress of an immutable function, folded into a constant when a query is planned.
    stage.sql("mallory", "CREATE INDEX ON mallory.events (id) WHERE mallory.spy()")
    stage.sql("mallory", "ALTER TABLE mallory.events ENABLE ROW LEVEL SECURITY")
    stage.sql("mallory", "CREATE POLICY spy ON mallory.events USING (mallory.spy())")
    stage.sql("mallory", "GRANT SELECT ON mallory.events TO PUBLIC")
    stage.sql("keeper", "SELECT count(*) FROM mallory.events")
    assert stage.role("keeper") in who(stage), "the attack itself does not work"
    stage.sql("mallory", "TRUNCATE mallory.seen")
    with Lapse(stage.url("keeper")) as worker:
        worker.preview("mallory.events")
        worker.run("mallory.events")
        worker.doctor()
        worker.status()
    assert who(stage) <= {stage.role("mallory")}
    assert ids(stage, "mallory.events") == [2]


def test_a_function_that_its_owner_turns_against_the_caller(stage: Stage) -> None:
    table(stage, "mallory")
    oid = stage.sql("mallory", "SELECT 'mallory.events'::regclass::oid")[0][0]
    stage.sql("mallory", "CREATE TABLE mallory.seen (who TEXT); GRANT INSERT ON mallory.seen TO PUBLIC")
    (definition,) = stage.sql(
        "postgres", f"SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'lapse_ttl_{oid}'"
    )[0]
    hostile = str(definition).replace("\nBEGIN\n", "\nBEGIN\n INSERT INTO mallory.seen VALUES (current_user);\n", 1)
    stage.sql("mallory", hostile.replace("SECURITY DEFINER", "SECURITY INVOKER"))
    assert run(stage, "mallory.events") in (JobStatus.FAILED, "parts_missing")
    assert who(stage) == set()
    stage.sql("mallory", hostile)
    assert run(stage, "mallory.events") in (JobStatus.FAILED, "parts_missing")
    assert who(stage) <= {stage.role("mallory")}
    assert ids(stage, "mallory.events") == [1, 2]


def test_a_stolen_password_deletes_no_live_row(stage: Stage) -> None:
    table(stage, "alice")
    stage.sql(
        "alice", "CREATE TABLE alice.other (id INTEGER, at TIMESTAMPTZ); INSERT INTO alice.other VALUES (1, '2000-1-1')"
    )
    oid, other = stage.sql("postgres", "SELECT 'alice.events'::regclass::oid, 'alice.other'::regclass::oid")[0]
    (name,) = stage.sql("postgres", f"SELECT oid::regproc::text FROM pg_proc WHERE proname = 'lapse_ttl_{oid}'")[0]
    for operation, places in (("sweep", "'(0,0)', '(99,0)'"), ("blocks", "'(0,0)', '(99,0)'"), ("index", "NULL, NULL")):
        call = (
            f"SELECT {name}('{operation}', {{part}}, ARRAY['infinity']::timestamptz[], ARRAY['infinity'],"
            f" ARRAY[1000, 0]::bigint[], ARRAY[{places}]::text[], '{{{{}}}}'::oid[])"
        )
        stage.sql("keeper", call.format(part=oid))
        assert ids(stage, "alice.events") == [2], operation
        for part in (other, 1259, "'pg_authid'::regclass::oid"):
            with pytest.raises(psycopg.Error):
                stage.sql("keeper", call.format(part=part))
    assert ids(stage, "alice.other") == [1]
    injected = (
        f"SELECT {name}('sweep', {oid}, ARRAY[now()], ARRAY['x'' OR true --'], ARRAY[1,0]::bigint[],"
        " ARRAY['(0,0)', '(9,0)'], '{}'::oid[])"
    )
    with pytest.raises(psycopg.Error):
        stage.sql("keeper", injected)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        stage.sql("mallory", call.format(part=oid))


@pytest.mark.parametrize("armed", ["armed", "NULL"])
def test_a_writer_of_the_catalog_deletes_no_live_row_of_another_owner(stage: Stage, armed: str) -> None:
    """What the catalog says of when rows expire, and of what was armed, is written over; the function knows better."""
    table(stage, "alice", ttl="TTL = at + INTERVAL 10 YEAR")
    stage.sql(
        "mallory",
        'UPDATE lapse_ttl.lapse_policy SET options = (options::jsonb || \'{"interval": "1 second"}\')::text,'
        f" grace_until = NULL, cleared_at = now(), armed = {armed} WHERE table_name = 'events'",
    )
    with Lapse(stage.url("keeper")) as worker:
        assert str(worker.policy("alice.events").policy.interval) == "1 second", "the attack itself does not work"
    run(stage, "alice.events")
    assert ids(stage, "alice.events") == [1, 2]


def test_a_partition_with_the_name_of_another_table(stage: Stage) -> None:
    table(stage, "alice", ttl="TTL = at + INTERVAL 10 YEAR")
    stage.declare(
        "mallory",
        "CREATE TABLE mallory.events (id INTEGER, at TIMESTAMPTZ) PARTITION BY RANGE (at) TTL = at + INTERVAL 1 SECOND",
        'CREATE TABLE mallory."""alice"".""events""" PARTITION OF mallory.events'
        " FOR VALUES FROM ('2000-01-01') TO ('2100-01-01')",
        f"INSERT INTO mallory.events VALUES (1, {OLD})",
    )
    allow(stage, "mallory")
    run(stage, "mallory.events")
    assert ids(stage, "mallory.events") == []
    assert ids(stage, "alice.events") == [1, 2]


def test_a_superuser_does_not_work_on_what_another_role_owns(stage: Stage) -> None:
    table(stage, "mallory")
    as_mallory(stage, "")
    with Lapse(stage.url("postgres")) as worker, pytest.raises(CatalogError, match="superuser"):
        worker.run()
    stage.sql("postgres", f"ALTER ROLE {stage.role('keeper')} SUPERUSER")
    with Lapse(stage.url("keeper")) as worker:
        (skip,) = worker.run("mallory.events").skipped
    assert skip.blocked is BlockCode.PRIVILEGE
    assert who(stage) == set()
    stage.sql("postgres", f"ALTER ROLE {stage.role('keeper')} NOSUPERUSER")


def test_declaring_takes_the_owner(stage: Stage) -> None:
    table(stage, "alice")
    stage.sql("alice", f"GRANT ALL ON alice.events TO {stage.role('mallory')}")
    stage.sql("alice", f"GRANT USAGE ON SCHEMA alice TO {stage.role('mallory')}")
    with Lapse(stage.url("mallory")) as declarer, pytest.raises(NotPermitted):
        declarer.execute("ALTER TABLE alice.events SET (ttl_expiration_expression = 'at')")
    assert run(stage, "alice.events") is JobStatus.FINISHED
    assert ids(stage, "alice.events") == [2]


@pytest.fixture
def empty(servers: Servers) -> Iterator[Stage]:
    """A database without a catalog."""
    backend = servers.get(VERSIONS[0])
    assert isinstance(backend, PostgresBackend)
    url = backend.create()
    made = Stage(backend=backend, database=url.rpartition("/")[2])
    for name in ("mallory", "lapse"):
        made.sql("postgres", f"CREATE ROLE {made.role(name)} LOGIN")
        made.sql("postgres", f"GRANT CREATE ON DATABASE {made.database} TO {made.role(name)}")
    yield made
    backend.drop(url)
    for name in ("mallory", "lapse"):
        backend._admin.execute(f"DROP ROLE {made.role(name)}")


@pytest.mark.parametrize("schema", ["lapse_ttl", "lapse"])
def test_a_squatted_schema_is_not_adopted(empty: Stage, schema: str) -> None:
    empty.sql("mallory", f"CREATE SCHEMA {schema}")
    empty.sql("mallory", f"CREATE TABLE {schema}.lapse_meta (name TEXT, value TEXT)")
    empty.sql("mallory", f"INSERT INTO {schema}.lapse_meta VALUES ('catalog_version', '2')")
    empty.sql("mallory", f"GRANT ALL ON SCHEMA {schema} TO PUBLIC; GRANT ALL ON {schema}.lapse_meta TO PUBLIC")
    empty.sql("postgres", "CREATE TABLE public.events (id INTEGER, at TIMESTAMPTZ)")
    with Lapse(empty.url("postgres")) as admin, pytest.raises(CatalogError, match="mallory"):
        admin.execute("ALTER TABLE public.events SET (ttl_expiration_expression = 'at')")
    assert empty.sql("postgres", "SELECT count(*) FROM pg_proc WHERE proname LIKE 'lapse%'") == [(0,)]


def test_others_may_not_create_in_the_catalogs_schema(empty: Stage) -> None:
    empty.declare("postgres", "CREATE TABLE public.events (id INTEGER, at TIMESTAMPTZ) TTL = at + INTERVAL 1 DAY")
    empty.sql("postgres", f"GRANT CREATE ON SCHEMA lapse_ttl TO {empty.role('mallory')}")
    with Lapse(empty.url("postgres")) as admin, pytest.raises(CatalogError, match="may create"):
        admin.run()


def test_a_role_named_like_the_product(empty: Stage) -> None:
    """It is what people make first, and its name is first in its search path."""
    role = empty.role("lapse")
    empty.sql("postgres", f"CREATE SCHEMA {role} AUTHORIZATION {role}")
    empty.declare(
        "lapse",
        "CREATE TABLE events (id INTEGER, at TIMESTAMPTZ) TTL = at + INTERVAL 1 DAY",
        f"INSERT INTO events VALUES (1, {OLD}), (2, {FRESH})",
    )
    with Lapse(empty.url("lapse")) as worker:
        assert worker.run("events").deleted == 1
    assert ids(empty, f"{role}.events") == [2]


def test_a_function_that_is_there_already_is_not_adopted(empty: Stage) -> None:
    """The name can be foreseen; what another role has made under it is neither called nor given rights."""
    empty.sql("postgres", "GRANT ALL ON SCHEMA public TO PUBLIC")
    empty.declare("lapse", "CREATE TABLE public.first (id INTEGER, at TIMESTAMPTZ) TTL = at + INTERVAL 1 DAY")
    empty.sql("mallory", "CREATE TABLE public.events (id INTEGER, at TIMESTAMPTZ)")
    (oid,) = empty.sql("postgres", "SELECT 'public.events'::regclass::oid")[0]
    empty.sql("postgres", f"ALTER TABLE public.events OWNER TO {empty.role('lapse')}")
    empty.sql(
        "mallory",
        f"CREATE FUNCTION public.lapse_ttl_{oid}(text, oid, timestamptz[], text[], bigint[], text[], oid[])"
        " RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE 'mine'; END $$",
    )
    with Lapse(empty.url("lapse")) as owner:
        try:
            owner.execute("ALTER TABLE public.events SET (ttl_expiration_expression = 'at')")
        except (NotPermitted, Blocked):
            return
        owner.execute(f"INSERT INTO public.events VALUES (1, {OLD}), (2, NULL)")
        assert owner.run("public.events").deleted == 1
