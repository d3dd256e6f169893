"""What becomes of the space of deleted rows: dead rows, autovacuum, and who keeps it from cleaning up."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from lapse.engines.base import Advice
from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import literal, relation
from lapse.model.table import Table, TableName

LONG_SECONDS = 900
"""A transaction open for longer than this keeps the space of deleted rows from being reused."""
FEW_DEAD_ROWS = 10_000
"""Where autovacuum comes at fewer dead rows than this, its settings do not matter."""
RARE_DAYS = 2.0
"""Autovacuum should come at least this often; the settings that are advised bring it every day."""

# What a table does not set for itself it has from the server; the upper limit is new in PostgreSQL 18. The view of
# these counters reads every table there is.
_STATE = """
    SELECT pg_stat_get_live_tuples(c.oid) AS live, pg_stat_get_dead_tuples(c.oid) AS dead,
           greatest(pg_stat_get_last_autovacuum_time(c.oid), pg_stat_get_last_vacuum_time(c.oid)) AS cleaned_at,
           o.running, current_setting('autovacuum')::boolean AS on_server,
           least(o.threshold + o.scale_factor * greatest(c.reltuples, 0), nullif(o.max_threshold, -1)) AS due_at,
           asked.name
      FROM unnest(%(names)s::text[]) AS asked (name)
      JOIN pg_catalog.pg_class c ON c.oid = to_regclass(asked.name)
     CROSS JOIN LATERAL (
           SELECT current_setting('autovacuum')::boolean
                    AND coalesce((own.it->>'autovacuum_enabled')::boolean, true) AS running,
                  coalesce(own.it->>'autovacuum_vacuum_threshold',
                           current_setting('autovacuum_vacuum_threshold'))::float8 AS threshold,
                  coalesce(own.it->>'autovacuum_vacuum_scale_factor',
                           current_setting('autovacuum_vacuum_scale_factor'))::float8 AS scale_factor,
                  coalesce(own.it->>'autovacuum_vacuum_max_threshold',
                           current_setting('autovacuum_vacuum_max_threshold', true))::float8 AS max_threshold
             FROM (SELECT jsonb_object_agg(option_name, option_value) AS it
                     FROM pg_options_to_table(c.reloptions)) own) o"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Debt:
    """Dead rows of a table, and at how many autovacuum comes if it comes at all."""

    dead: int
    due_at: float
    is_running: bool


_TRANSACTIONS = """
    SELECT pid, extract(epoch FROM now() - xact_start)::bigint AS seconds FROM pg_catalog.pg_stat_activity
     WHERE xact_start < now() - make_interval(secs => %(seconds)s) AND backend_type = 'client backend'
       AND datname = current_database()
     ORDER BY xact_start LIMIT 1"""

_PREPARED = """
    SELECT gid, extract(epoch FROM now() - prepared)::bigint AS seconds FROM pg_catalog.pg_prepared_xacts
     WHERE prepared < now() - make_interval(secs => %(seconds)s) AND database = current_database()
     ORDER BY prepared LIMIT 1"""

_SLOTS = "SELECT slot_name FROM pg_catalog.pg_replication_slots WHERE NOT active AND xmin IS NOT NULL LIMIT 1"


def debts(connection: Connection, names: Collection[TableName]) -> dict[TableName, Debt]:
    """Those of the tables that are there; a statement for all of them."""
    by_oid = {relation(name): name for name in names}
    found = rows(connection, _STATE, {"names": list(by_oid)})
    return {
        by_oid[row["name"]]: Debt(dead=row["dead"] or 0, due_at=row["due_at"], is_running=row["running"])
        for row in found
    }


def report(connection: Connection, table: Table) -> str | None:
    """How much is waiting to be cleaned up, in words; None where nothing is."""
    state = _state(connection, table)
    if state is None or not state["dead"]:
        return None
    share = state["dead"] / (state["dead"] + state["live"])
    cleaned = "never" if state["cleaned_at"] is None else f"on {state['cleaned_at']:%Y-%m-%d %H:%M}"
    return (
        f"about {state['dead']:,} dead rows of {table.name} ({share:.0%}) wait for autovacuum, which comes at "
        f"{state['due_at']:,.0f}; last cleaned up: {cleaned}"
    )


def advice(connection: Connection, table: Table, deleted_per_day: float) -> list[Advice]:
    state = _state(connection, table)
    if state is None:
        return []
    return [*_settings(table, state, deleted_per_day), *_blockers(connection, table, state["dead"] or 0)]


def _state(connection: Connection, table: Table) -> dict[str, Any] | None:
    return next(iter(rows(connection, _STATE, {"names": [relation(table.name)]})), None)


def _settings(table: Table, state: dict[str, Any], deleted_per_day: float) -> Iterator[Advice]:
    name, due_at = relation(table.name), state["due_at"]
    if not state["running"]:
        yield Advice(
            text="autovacuum is off, so the space of deleted rows is never reused",
            statement=f"ALTER TABLE {name} RESET (autovacuum_enabled);"
            if state["on_server"]
            else "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf();",
        )
    elif due_at > FEW_DEAD_ROWS and due_at > RARE_DAYS * deleted_per_day > 0:
        wanted = max(int(deleted_per_day), FEW_DEAD_ROWS // 10)
        yield Advice(
            text=f"jobs delete about {deleted_per_day:,.0f} rows a day and autovacuum waits for {due_at:,.0f}, so "
            f"their space is reused after about {due_at / deleted_per_day:,.0f} days",
            statement=f"ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0,"
            f" autovacuum_vacuum_threshold = {wanted});",
        )


def _blockers(connection: Connection, table: Table, dead: int) -> Iterator[Advice]:
    kept = f"{dead:,} dead rows of {table.name} cannot be cleaned up"
    age = {"seconds": LONG_SECONDS}
    for row in rows(connection, _TRANSACTIONS, age):
        yield Advice(
            text=f"a transaction has been open for {row['seconds']} seconds (pid {row['pid']}): until it ends, {kept}",
            statement=f"SELECT pg_terminate_backend({row['pid']});",
        )
    for row in rows(connection, _PREPARED, age):
        yield Advice(
            text=f"a prepared transaction has waited for {row['seconds']} seconds: until it ends, {kept}",
            statement=f"ROLLBACK PREPARED {literal(str(row['gid']))};",
        )
    for row in rows(connection, _SLOTS):
        yield Advice(
            text=f"the replication slot {row['slot_name']} has no reader: as long as it is there, {kept}",
            statement=f"SELECT pg_drop_replication_slot({literal(str(row['slot_name']))});",
        )
