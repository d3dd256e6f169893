"""Operators, functions and types that another role has put where the search path finds them are never called."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from lapse.engines.postgres.condition import expired_now
from lapse.errors import Unsupported
from lapse.model.policy import Policy
from lapse.model.table import TableName
from lapse.runner.policy_manager import bind
from tests.conformance.harness import Harness

OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "||", "~~", "~", "#>>")
TYPES = (
    ("varchar", "varchar"),
    ("varchar", "text"),
    ("varchar", "unknown"),
    ("timestamptz", "timestamp"),
    ("timestamp", "timestamptz"),
    ("date", "timestamp"),
    ("bigint", "numeric"),
    ("smallint", "numeric"),
    ("char", "varchar"),
)
EXPRESSIONS = [
    "CASE WHEN state = ''done'' THEN ts END",
    "CASE WHEN state IN (''done'', ''new'') AND state <> ''x'' THEN ts + INTERVAL ''1 month'' ELSE d END",
    "CASE WHEN state LIKE ''d%'' AND lower(state) || ''x'' = ''donex'' THEN ts - INTERVAL ''1 day'' END",
    "if(nullif(state, ''x'') IS NOT NULL, greatest(ts, d, day), NULL)",
    "if(state IS DISTINCT FROM ''x'', coalesce((body ->> ''at'')::timestamptz, ts), NULL)",
    "CASE WHEN n * 2 - 1 > 0 AND n % 2 = 1 AND abs(n) / 1 <= 1 AND -n < 0 THEN day END",
    "CASE state WHEN ''done'' THEN to_timestamp(seconds) END",
    "ts",
    "d + INTERVAL ''1 day''",
    "day",
    "CASE WHEN length(state) BETWEEN 1 AND 9 AND round(n) = 1 THEN ts + keep END",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_squatted_operators_are_not_called(h: Harness, client: psycopg.Connection, expression: str) -> None:
    h.sql(
        "CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ, d TIMESTAMP, day DATE, state VARCHAR(9), n SMALLINT,"
        " seconds BIGINT, body JSONB, keep INTERVAL)"
    )
    h.sql(
        "INSERT INTO events VALUES (1, '2026-01-01', '2026-01-01', '2026-01-01', 'done', 1, 1767225600,"
        """ '{"at": "2026-01-01"}', '1 day')"""
    )
    client.execute("SET check_function_bodies = off")
    for operator in OPERATORS:
        for left, right in TYPES:
            name = f"thief_{OPERATORS.index(operator)}_{TYPES.index((left, right))}"
            result = "boolean" if operator in OPERATORS[:6] or "~" in operator else left
            if "unknown" in (left, right):
                continue
            client.execute(
                f"CREATE FUNCTION public.{name}({left}, {right}) RETURNS {result} LANGUAGE plpgsql AS"
                f" $$ BEGIN RAISE 'stolen %', '{operator}'; END $$"
            )
            client.execute(
                f"CREATE OPERATOR public.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.{name})"
            )
    for function in ("lower(varchar)", "length(varchar)", "abs(smallint)", "round(smallint)", "to_timestamp(bigint)"):
        kind = "timestamptz" if "to_" in function else "bigint" if function[0] != "l" else "text"
        kind = "integer" if "length" in function else kind
        client.execute(
            f"CREATE FUNCTION public.{function} RETURNS {kind} LANGUAGE plpgsql AS $$ BEGIN RAISE 'stolen'; END $$"
        )
    assert _expired(h, expression) == [1]
    _run(h, expression)


def _run(h: Harness, expression: str) -> None:
    """Declared and run with everything that another role has put into the path: the batch function finds its own."""
    h.sql(f"ALTER TABLE events SET (ttl_expiration_expression = '{expression}', ttl_time_zone = 'America/New_York')")
    assert h.db.preview("events")[0].survey.expired == 1
    assert h.run_one().counts.deleted == 1


def _expired(h: Harness, expression: str) -> list[int]:
    """What the engine finds, and what the conditions themselves say in a session with the user's search path."""
    engine = h.db.engine
    text = expression.replace("''", "'")
    with engine.connection() as connection, closing(engine.user_connection()) as users:
        table = engine.describe(connection, TableName("events"))
        declared = bind(table, Policy(expression=text, time_zone="America/New_York"))
        for condition in (engine.condition(connection, declared, h.now).sql, expired_now(declared)):
            found = users.exec_driver_sql(f"SELECT id FROM events WHERE {condition}")
            numbers = [int(row[0]) for row in found]
            assert numbers == [1], condition
        target = engine.target(connection, declared, h.now)
        assert engine.survey(connection, target).expired == 1
        assert engine.expiring(connection, declared, [h.now], exact=True).counts == (1,)
        return [int(str(row["id"])) for row in engine.sample(connection, target, 10)]


def test_types_before_those_of_postgresql(h: Harness, client: psycopg.Connection) -> None:
    """Even a path that names pg_catalog last finds PostgreSQL's own."""
    client.execute("CREATE DOMAIN public.timestamptz AS text; CREATE DOMAIN public.date AS text")
    client.execute(
        "CREATE FUNCTION public.now() RETURNS pg_catalog.timestamptz LANGUAGE sql"
        " AS $$ SELECT NULL::pg_catalog.timestamptz $$"
    )
    database = client.execute("SELECT current_database()").fetchone()[0]  # type: ignore[index]
    client.execute(f"ALTER DATABASE {database} SET search_path = public, pg_catalog")
    with h.open() as db:
        db.execute("CREATE TABLE events (id INTEGER, ts TIMESTAMP WITH TIME ZONE, day pg_catalog.date)")
        db.execute("INSERT INTO events VALUES (1, '2026-01-01', '2026-01-01')")
    h.owner.engine.database.dispose()
    for expression in ("greatest(ts, day::date)", "day", "if(ts < current_timestamp, ts::date, NULL)"):
        assert _expired(h, expression) == [1]
    _run(h, "day")


def test_a_type_with_operators_of_its_own_is_compared_as_text_or_not_at_all(
    h: Harness, client: psycopg.Connection
) -> None:
    client.execute("CREATE TYPE mood AS ENUM ('keep', 'go'); CREATE TYPE pair AS (a int, b int)")
    h.sql("CREATE TABLE events (id INTEGER, ts TIMESTAMPTZ, mood mood, pair pair)")
    h.sql("INSERT INTO events VALUES (1, '2026-01-01', 'keep', '(1,2)'), (2, '2026-01-01', 'go', '(1,2)')")
    with pytest.raises(Unsupported, match="pair"):
        h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'if(pair = ''(1,2)'', ts, NULL)')")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'if(pair::text = ''(1,2)'', ts, NULL)')")
    h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'if(mood = ''go'', ts, NULL)')")
    h.run()
    assert h.ids() == [1]
