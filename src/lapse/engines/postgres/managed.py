"""The managed column: added without rewriting the table, stamped by its default, renewed by a trigger.

The default stamps rows that are inserted without a value. On an update the trigger's own condition does the deciding,
so the function is called only for rows whose expiry moves: NULL stays, what the statement sets stays, a later instant
stays. Where partitions have durations of their own, a second trigger restamps rows that carry the common default.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import (
    CATALOG_SCHEMA,
    INSERT_TRIGGER,
    STAMP_FUNCTION,
    UPDATE_TRIGGER,
    instant,
    literal,
    quote,
    relation,
    shifted,
)
from lapse.model.interval import Interval
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table

_COLUMN = quote(MANAGED_COLUMN)
_NO_PARTITION = ""

# The arguments are the interval for all rows, then name and interval for each partition that has its own. A single one
# has no months, so it can simply be added: this runs for every updated row.
STAMP_SOURCE = f"""
DECLARE
    stamp timestamptz;
BEGIN
    IF TG_NARGS = 1 THEN
        NEW.{_COLUMN} := now() + TG_ARGV[0]::interval;
        RETURN NEW;
    END IF;
    stamp := timezone('UTC', timezone('UTC', now()) + TG_ARGV[0]::interval);
    FOR i IN 1 .. TG_NARGS - 1 BY 2 LOOP
        IF TG_ARGV[i] = TG_TABLE_NAME THEN
            stamp := timezone('UTC', timezone('UTC', now()) + TG_ARGV[i + 1]::interval);
        END IF;
    END LOOP;
    IF TG_OP = 'INSERT' OR NEW.{_COLUMN} < stamp THEN
        NEW.{_COLUMN} := stamp;
    END IF;
    RETURN NEW;
END
"""


def create_function(connection: Connection) -> None:
    connection.exec_driver_sql(
        f"CREATE OR REPLACE FUNCTION {STAMP_FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS {literal(STAMP_SOURCE)}"
    )


def ensure_function(connection: Connection) -> None:
    found = connection.exec_driver_sql(
        "SELECT p.prosrc FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"
        f" WHERE n.nspname = '{CATALOG_SCHEMA}' AND p.proname = 'stamp_expiration' AND p.pronargs = 0"
    ).scalar()
    if found != STAMP_SOURCE:
        create_function(connection)


def default(after: Interval) -> str:
    return shifted("now()", after, "+")


def add_column(connection: Connection, table: Table, after: Interval, now: datetime) -> None:
    """Old rows share one constant, which the server keeps beside the table: no row is rewritten."""
    connection.exec_driver_sql(
        f"ALTER TABLE {relation(table.name)} ADD COLUMN {_COLUMN} timestamptz DEFAULT {instant(after.added_to(now))}"
    )
    set_default(connection, table, after)


def set_default(connection: Connection, table: Table, after: Interval) -> None:
    connection.exec_driver_sql(
        f"ALTER TABLE {relation(table.name)} ALTER COLUMN {_COLUMN} SET DEFAULT {default(after)}"
    )


def drop_column(connection: Connection, table: Table) -> None:
    connection.exec_driver_sql(f"ALTER TABLE {relation(table.name)} DROP COLUMN IF EXISTS {_COLUMN}")


def create_triggers(connection: Connection, table: Table, policy: Policy) -> None:
    ensure_function(connection)
    drop_triggers(connection, table)
    for statement in _triggers(table, policy).values():
        connection.exec_driver_sql(statement)


def drop_triggers(connection: Connection, table: Table) -> None:
    for name in (UPDATE_TRIGGER, INSERT_TRIGGER):
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name} ON {relation(table.name)}")


def missing_parts(connection: Connection, table: Table, policy: Policy) -> list[str]:
    if table.column(MANAGED_COLUMN) is None:
        return [f"column {MANAGED_COLUMN}"]
    found = {
        row["tgname"]: row
        for row in rows(
            connection,
            "SELECT t.tgname, t.tgenabled::text AS enabled, encode(t.tgargs, 'escape') AS arguments,"
            " p.oid IS NOT NULL AS ours FROM pg_catalog.pg_trigger t"
            " LEFT JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid AND p.proname = 'stamp_expiration'"
            " WHERE t.tgrelid = to_regclass(%(name)s)",
            {"name": relation(table.name)},
        )
    }
    wanted = "".join(f"{argument}\\000" for argument in _arguments(policy))
    missing = []
    for name in _triggers(table, policy):
        row = found.get(name)
        if row is None or not row["ours"] or row["enabled"] == "D" or row["arguments"] != wanted:
            missing.append(f"trigger {name}")
    has_default = rows(
        connection,
        "SELECT 1 FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass(%(name)s)"
        " AND attname = %(column)s AND atthasdef",
        {"name": relation(table.name), "column": MANAGED_COLUMN},
    )
    return missing if has_default else [*missing, f"default of column {MANAGED_COLUMN}"]


def _triggers(table: Table, policy: Policy) -> dict[str, str]:
    assert policy.expire_after is not None
    target, arguments = relation(table.name), ", ".join(literal(argument) for argument in _arguments(policy))
    common = f"ON {target} FOR EACH ROW"
    call = f"EXECUTE FUNCTION {STAMP_FUNCTION}({arguments})"
    own = [rule.after for rule in policy.partitions if rule.column is None]
    # The longest duration decides whether the function has a look; with one duration the answer is exact.
    longest = max((policy.expire_after, *own), key=lambda after: after.approximate_seconds)
    unchanged = f"NEW.{_COLUMN} = OLD.{_COLUMN}"
    statements = {
        UPDATE_TRIGGER: f"CREATE TRIGGER {UPDATE_TRIGGER} BEFORE UPDATE {common}"
        f" WHEN ({unchanged} AND NEW.{_COLUMN} < {default(longest)}) {call}"
    }
    if own:
        statements[INSERT_TRIGGER] = (
            f"CREATE TRIGGER {INSERT_TRIGGER} BEFORE INSERT {common}"
            f" WHEN (NEW.{_COLUMN} = {default(policy.expire_after)}) {call}"
        )
    return statements


def _arguments(policy: Policy) -> list[str]:
    assert policy.expire_after is not None
    arguments = [_words(policy.expire_after)]
    for rule in policy.partitions:
        if rule.column is None:
            arguments += [rule.partition, _words(rule.after)]
    if policy.expire_after.months and len(arguments) == 1:
        arguments += [_NO_PARTITION, arguments[0]]
    return arguments


def _words(after: Interval) -> str:
    seconds, rest = divmod(after.micros, 1_000_000)
    words = f"{seconds}.{rest:06} seconds" if rest else f"{seconds} seconds"
    return f"{after.months} months {words}" if after.months else words
