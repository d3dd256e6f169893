"""A database with a past: policies in every state, a month of history, a job under way."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import insert, update

from lapse.app import Lapse
from lapse.catalog import policies
from lapse.catalog.schema import job as job_table
from lapse.catalog.schema import policy as policy_table
from lapse.catalog.schema import table as physical_table
from lapse.catalog.workers import WorkerRow, beat_worker
from lapse.model.table import TableName

TABLES = """
CREATE TABLE sessions (id INTEGER PRIMARY KEY, user_id INTEGER, last_seen TEXT);
CREATE TABLE events (id INTEGER PRIMARY KEY, name TEXT, at TEXT);
CREATE TABLE audit_log (id INTEGER PRIMARY KEY, entry TEXT, written_at TEXT);
CREATE TABLE outbox (id INTEGER PRIMARY KEY, message TEXT, sent_at TEXT);
CREATE TABLE password_resets (id INTEGER PRIMARY KEY, expires_at TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, closed_at TEXT);
CREATE INDEX sessions_last_seen ON sessions (last_seen);
ALTER TABLE sessions SET (ttl_expiration_expression = 'last_seen + INTERVAL ''8 hours''',
                          ttl_job_cron = '*/15 * * * *');
ALTER TABLE events SET (ttl_expiration_expression = 'at + INTERVAL ''30 days''', ttl_label_metrics = 'on',
                        ttl_delete_rate_limit = 200, ttl_delete_batch_size = 50,
                        ttl_row_stats_poll_interval = '1 second');
ALTER TABLE audit_log TTL = written_at + INTERVAL 90 DAY TTL_JOB_INTERVAL = '6h';
ALTER TABLE outbox SET (ttl_expire_after = '7 days', ttl_pause = 'on');
ALTER TABLE password_resets SET (ttl_expiration_expression = 'expires_at');
ALTER TABLE orders TTL = closed_at + INTERVAL 2 YEAR;
"""
ROWS = {
    ("sessions", "last_seen"): (41_200, -7),
    ("events", "at"): (30_000, -715),
    ("audit_log", "written_at"): (9_000, -2100),
    ("password_resets", "expires_at"): (1_900, 24),
    ("orders", "closed_at"): (52_400, -17_000),
}
"""Table and column → rows, and over how many hours, back or ahead, those that live are spread."""
PER_DAY = {
    "sessions": 8_400,
    "events": 118_000,
    "audit_log": 2_600,
    "outbox": 900,
    "password_resets": 310,
    "orders": 75,
}
HELD = {"orders": 12}
LATE = timedelta(days=2, hours=7)


def build(path: Path) -> Lapse:
    """`events` has 30,000 rows of which a third has expired, and its job is due; nothing else is."""
    database = Lapse(f"sqlite:///{path}")
    database.execute(TABLES)
    chance = random.Random(7)
    now = database.clock()
    for (table, column), (count, hours) in ROWS.items():
        expired = 10_000 if table == "events" else 0
        database.execute(
            f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
            f" INSERT INTO {table} (id, {column})"
            f" SELECT i, CASE WHEN i <= {expired} THEN datetime('now', '-31 days')"
            f" ELSE datetime('now', ((1 + i * 7919 % {abs(hours)}) * {hours // abs(hours)}) || ' hours') END FROM n"
        )
    for stored in database.policies():
        _remember(database, stored.id, stored.table, now, chance)
    return database


def _remember(database: Lapse, policy_id: int, name: TableName, now: datetime, chance: random.Random) -> None:
    """A month of finished jobs, and what is special about some tables."""
    with database.catalog.writing() as connection:
        physical = policies.list_tables(connection, policy_id)[0]
        for back in range(29, -1, -1):
            end = now - timedelta(days=back, minutes=chance.randint(1, 9))
            if name.name == "audit_log" and now - end < LATE:
                continue
            weekend = 0.45 if end.weekday() >= 5 else 1.0
            rows = int(PER_DAY[name.name] * weekend * chance.uniform(0.8, 1.2)) * (0.4 if back == 0 else 1)
            _job(connection, physical.id, policy_id, name, end, int(rows), HELD.get(name.name, 0))
        if name.name == "password_resets":
            reason = "table password_resets has no column expires_at any more, which its TTL policy needs"
            _job(connection, physical.id, policy_id, name, now - timedelta(minutes=4), 0, 0, "failed", reason)
        # None of the others falls due while the tests run, on however slow a machine.
        due = {"events": None, "outbox": None}.get(name.name, now + timedelta(minutes=chance.randint(95, 175)))
        connection.execute(
            update(physical_table).where(physical_table.c.table_id == physical.id).values(next_run_at=due)
        )
        connection.execute(update(policy_table).values(created_at=now - timedelta(days=40), grace_until=None))


def _job(
    connection: object, table_id: int, policy_id: int, name: TableName, end: datetime, rows: int, held: int,
    status: str = "finished", reason: str | None = None,
) -> None:  # fmt: skip
    start = end - timedelta(seconds=max(1, rows // 900))
    values = {
        "table_id": table_id, "policy_id": policy_id, "policy_version": 1, "schema_name": name.schema or "",
        "table_name": name.name, "partition_name": "", "cutoff": start, "status": status, "reason": reason,
        "path_kind": "index" if name.name == "sessions" else "physical",
        "path_index": "sessions_last_seen" if name.name == "sessions" else None,
        "path_evidence": "few rows have expired" if name.name == "sessions" else "no index begins with the column",
        "fingerprint": "", "created_at": start, "started_at": start, "finished_at": end, "changed_at": end,
        "tasks_total": 1, "selected": rows + held, "deleted": rows, "held": held, "skipped": 0, "errors": 0,
        "batches": rows // 80 + 1,
        "summary": json.dumps(
            {"select_seconds": rows / 4400, "delete_seconds": rows / 1500, "waited_seconds": rows / 5000}
        ),
    }  # fmt: skip
    connection.execute(insert(job_table).values(**values))  # type: ignore[attr-defined]


def other_workers(database: Lapse) -> None:
    """Two more members of the fleet: one alive, one that has gone silent."""
    with database.catalog.writing() as connection:
        now = database.engine.now(connection)
        for name, age in (("db-worker-2", 2), ("db-worker-3", 340)):
            row = WorkerRow(
                id=f"{name}-4711-5c0ffee5", address=f"{name}:4711", version="0.1.0",
                started_at=now - timedelta(hours=31), heartbeat_at=now - timedelta(seconds=age), state="{}",
            )  # fmt: skip
            beat_worker(connection, row)
