"""The managed column: added without rewriting the table, stamped by its default, renewed by a trigger.

The default stamps rows that are inserted without a value. On an update the trigger's own condition does the deciding,
so the function is called only for rows whose expiry moves: NULL stays, what the statement sets stays, a later instant
stays. Where partitions have durations of their own, a second trigger restamps rows that carry the common default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection

from lapse.engines.postgres import function
from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import (
    INSERT_TRIGGER,
    STAMP_FUNCTION,
    STAMP_PREFIX,
    UPDATE_TRIGGER,
    literal,
    quote,
    relation,
)
from lapse.engines.postgres.times import instant, operation, shifted
from lapse.model.interval import Interval
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table

_COLUMN = quote(MANAGED_COLUMN)
_NO_PARTITION = ""

# The arguments are the interval for all rows, then name and interval for each partition that has its own. A single one
# has no months, so it can simply be added: this runs for every updated row, with the rights of the updating role, so
# nothing in it is found by the search path.
STAMP_SOURCE = f"""
DECLARE
    stamp pg_catalog.timestamptz;
BEGIN
    IF TG_NARGS OPERATOR(pg_catalog.=) 1 THEN
        NEW.{_COLUMN} := pg_catalog.now() OPERATOR(pg_catalog.+) TG_ARGV[0]::interval;
        RETURN NEW;
    END IF;
    stamp := pg_catalog.timezone('UTC', pg_catalog.timezone('UTC', pg_catalog.now())
                                        OPERATOR(pg_catalog.+) TG_ARGV[0]::interval);
    FOR i IN 1 .. TG_NARGS OPERATOR(pg_catalog.-) 1 BY 2 LOOP
        IF TG_ARGV[i] OPERATOR(pg_catalog.=) TG_TABLE_NAME THEN
            stamp := pg_catalog.timezone('UTC', pg_catalog.timezone('UTC', pg_catalog.now())
                                                OPERATOR(pg_catalog.+) TG_ARGV[i OPERATOR(pg_catalog.+) 1]::interval);
        END IF;
    END LOOP;
    IF TG_OP OPERATOR(pg_catalog.=) 'INSERT' OR NEW.{_COLUMN} OPERATOR(pg_catalog.<) stamp THEN
        NEW.{_COLUMN} := stamp;
    END IF;
    RETURN NEW;
END
"""


def stamp_function(connection: Connection, table: Table) -> str:
    """Its name: the catalog's owner has one for all tables; any other owner one for each table, beside it, since the
    function runs with the rights of those who update the table and must be the owner's own."""
    found = function.shape_of(connection, table.name)
    if found.keeps_catalog:
        return STAMP_FUNCTION
    return f"{quote(found.schema)}.{quote(f'{STAMP_PREFIX}{found.oid}')}"


def ensure_function(connection: Connection, table: Table) -> str:
    name, owner = stamp_function(connection, table), function.shape_of(connection, table.name).owner
    found = rows(connection, _FUNCTION, {"name": f"{name}()"})
    if not found or found[0]["source"] != STAMP_SOURCE:
        connection.exec_driver_sql(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS {literal(STAMP_SOURCE)}"
        )
        found = rows(connection, _FUNCTION, {"name": f"{name}()"})
    if found[0]["owner"] != owner:
        connection.exec_driver_sql(f"ALTER FUNCTION {name}() OWNER TO {quote(owner)}")
    return name


def drop_function(connection: Connection, table: Table) -> None:
    name = stamp_function(connection, table)
    if name != STAMP_FUNCTION:
        connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS {name}()")


_FUNCTION = """
    SELECT prosrc AS source, pg_catalog.pg_get_userbyid(proowner) AS owner
      FROM pg_catalog.pg_proc WHERE oid = pg_catalog.to_regprocedure(%(name)s)"""


def default(after: Interval) -> str:
    return shifted("pg_catalog.now()", after, "+")


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
    name = ensure_function(connection, table)
    drop_triggers(connection, table)
    for statement in _triggers(table, policy, name).values():
        connection.exec_driver_sql(statement)


def drop_triggers(connection: Connection, table: Table) -> None:
    for name in (UPDATE_TRIGGER, INSERT_TRIGGER):
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name} ON {relation(table.name)}")


def missing_parts(connection: Connection, table: Table, policy: Policy, *, former: bool = False) -> list[str]:
    """`former`: the function may be that of an earlier version."""
    if table.column(MANAGED_COLUMN) is None:
        return [f"column {MANAGED_COLUMN}"]
    conditions = _conditions(policy)
    found = {
        row["tgname"]: row
        for row in rows(
            connection,
            "SELECT t.tgname, t.tgenabled::text AS enabled, encode(t.tgargs, 'escape') AS arguments,"
            " p.prosrc = %(source)s AND p.proowner = c.relowner AS ours,"
            " p.proname = 'stamp_expiration' AS formerly_ours, pg_catalog.pg_get_triggerdef(t.oid) AS definition,"
            f" {_written(conditions)} AS intervals"
            " FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid"
            " JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = to_regclass(%(name)s)",
            {"name": relation(table.name), "source": STAMP_SOURCE},
        )
    }
    wanted = "".join(f"{argument}\\000" for argument in _arguments(policy))
    missing = []
    for name, typed in conditions.items():
        row = found.get(name)
        ours = row is not None and (row["ours"] or (former and row["formerly_ours"]))
        if row is None or not ours or row["enabled"] == "D" or row["arguments"] != wanted:
            missing.append(f"trigger {name}")
            continue
        if not _means(str(row["definition"]), typed, row["intervals"]):
            missing.append(f"trigger {name}")
    has_default = rows(
        connection,
        "SELECT 1 FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass(%(name)s)"
        " AND attname = %(column)s AND atthasdef",
        {"name": relation(table.name), "column": MANAGED_COLUMN},
    )
    return missing if has_default else [*missing, f"default of column {MANAGED_COLUMN}"]


def _means(definition: str, typed: str, written: Mapping[str, str]) -> bool:
    """Does a trigger, as the server writes it, run for the rows that a condition, as Lapse writes it, is true for?

    The server leaves out what its search path makes clear, has its own way with parentheses and writes an interval as
    the session likes it: `written` has each as it does now.
    """
    found = _WHEN.search(definition)
    typed = _INTERVAL.sub(lambda interval: f"{literal(written[interval[1]])}::interval", typed)
    typed = typed.replace("'UTC'", "'UTC'::text").replace("pg_catalog.now", "now")
    typed = _OPERATOR.sub(r"\1", typed)
    return found is not None and _bare(found["condition"]) == _bare(typed)


def _written(conditions: Mapping[str, str]) -> str:
    """SQL: an object with the intervals of these conditions, as the server writes them."""
    texts = sorted({text for typed in conditions.values() for text in _INTERVAL.findall(typed)})
    return f"json_build_object({', '.join(f'{literal(text)}, (INTERVAL {literal(text)})::text' for text in texts)})"


_WHEN = re.compile(r" FOR EACH ROW WHEN (?P<condition>.*) EXECUTE FUNCTION ", re.DOTALL)
_INTERVAL = re.compile(r"INTERVAL '([^']*)'")
_OPERATOR = re.compile(r"OPERATOR\(pg_catalog\.(.)\)")


def _bare(sql: str) -> str:
    return re.sub(r"[\s()\"]", "", sql.replace("NEW.", "new.").replace("OLD.", "old."))


def _triggers(table: Table, policy: Policy, stamping: str) -> dict[str, str]:
    arguments = ", ".join(literal(argument) for argument in _arguments(policy))
    events = {UPDATE_TRIGGER: "UPDATE", INSERT_TRIGGER: "INSERT"}
    return {
        name: f"CREATE TRIGGER {name} BEFORE {events[name]} ON {relation(table.name)} FOR EACH ROW WHEN {when}"
        f" EXECUTE FUNCTION {stamping}({arguments})"
        for name, when in _conditions(policy).items()
    }


def _conditions(policy: Policy) -> dict[str, str]:
    """For which rows each trigger calls the function, by its name."""
    assert policy.expire_after is not None
    own = [rule.after for rule in policy.partitions if rule.column is None]
    # The longest duration decides whether the function has a look; with one duration the answer is exact.
    longest = max((policy.expire_after, *own), key=lambda after: after.approximate_seconds)
    unchanged = operation("=", f"NEW.{_COLUMN}", f"OLD.{_COLUMN}")
    due = default(longest) if policy.renew_every is None else shifted(default(longest), policy.renew_every, "-")
    conditions = {UPDATE_TRIGGER: f"({unchanged} AND {operation('<', f'NEW.{_COLUMN}', due)})"}
    if own:
        conditions[INSERT_TRIGGER] = operation("=", f"NEW.{_COLUMN}", default(policy.expire_after))
    return conditions


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
