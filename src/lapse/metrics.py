"""What Lapse tells Prometheus: every metric is defined here once, with its labels and its meaning.

Two kinds by where they come from. *Process* metrics count what this worker does, and add up over a fleet. *Database*
metrics describe the state that all workers share, read at every scrape, so each worker reports the same value: take
`max`, not `sum`, over instances.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

PREFIX = "lapse_ttl_"
DEFAULT_LABEL = "default"
"""The table label of all tables whose policy does not set `ttl_label_metrics`: the number of series stays bounded."""
BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TASK_BUCKETS_SECONDS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)


class MetricKind(StrEnum):
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


class MetricOrigin(StrEnum):
    PROCESS = "process"
    DATABASE = "database"


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    name: str
    kind: MetricKind
    labels: tuple[str, ...] = ()
    help: str

    @property
    def origin(self) -> MetricOrigin:
        return MetricOrigin.DATABASE if self.kind is MetricKind.GAUGE else MetricOrigin.PROCESS


def _define(name: str, kind: MetricKind, help_text: str, *labels: str) -> Definition:
    return Definition(name=PREFIX + name, kind=kind, labels=labels, help=help_text)


QUERIES = _define("queries_total", MetricKind.COUNTER, "Statements by type and result.", "table", "sql_type", "result")
QUERY_DURATION = _define(
    "query_duration_seconds",
    MetricKind.HISTOGRAM,
    "Time of a statement: `select` looks for expired rows, `delete` is the transaction that removes them.",
    "table",
    "sql_type",
)
PROCESSED = _define(
    "processed_expired_rows_total",
    MetricKind.COUNTER,
    "Expired rows found (`select`) and handled (`delete`: `ok` is gone, `error` was held or locked).",
    "table",
    "sql_type",
    "result",
)
ROWS_SELECTED = _define("rows_selected_total", MetricKind.COUNTER, "Expired rows found.", "table")
ROWS_DELETED = _define("rows_deleted_total", MetricKind.COUNTER, "Expired rows really deleted.", "table")
ROWS_HELD = _define(
    "rows_held_total",
    MetricKind.COUNTER,
    "Expired rows that a foreign key, a trigger or an error kept from being deleted.",
    "table",
)
ROWS_SKIPPED = _define(
    "rows_skipped_total", MetricKind.COUNTER, "Expired rows passed by because they were locked.", "table"
)
DELETE_RETRIES = _define("delete_retries_total", MetricKind.COUNTER, "Batches tried again after a retryable error.")
TASK_DURATION = _define(
    "task_duration_seconds",
    MetricKind.HISTOGRAM,
    "Wall time that a worker spent on one task, from claim to end.",
    "table",
)
PHASE_TIME = _define(
    "phase_time_seconds_total",
    MetricKind.COUNTER,
    "Where tasks' wall time went: scan, delete, wait_rate_limit, wait_retry, wait_gate, wait_yield, other.",
    "phase",
)
PAUSES = _define(
    "pauses_total",
    MetricKind.COUNTER,
    "Waits of a task between batches, by cause: rate_limit, retry, gate, yield.",
    "cause",
)
JOBS_CREATED = _define("jobs_created_total", MetricKind.COUNTER, "Jobs that this worker created.")
JOBS_ENDED = _define(
    "jobs_ended_total", MetricKind.COUNTER, "Jobs that this worker saw end, by how they ended.", "status"
)
TABLES_BLOCKED = _define("tables_blocked_total", MetricKind.COUNTER, "Tables that this worker found blocked.", "code")
SERVICE_ERRORS = _define(
    "service_errors_total",
    MetricKind.COUNTER,
    "Rounds of a worker's own loops that met an error: scheduler, supervisor, controller, row-counter, task.",
    "service",
)

DATABASE_UP = _define("database_up", MetricKind.GAUGE, "1 when the catalog could be read for this scrape, 0 when not.")
BUILD_INFO = _define(
    "build_info", MetricKind.GAUGE, "Always 1; the labels tell version and engine.", "version", "engine"
)
CLOCK_OFFSET = _define("clock_offset_seconds", MetricKind.GAUGE, "The database's clock minus this machine's.")
CLOCK_HELD = _define("clock_held", MetricKind.GAUGE, "1 while jobs wait because the database's clock jumped ahead.")
PRESSURE = _define(
    "pressure_ratio",
    MetricKind.GAUGE,
    "Strain on the server by gauge: at 1 Lapse yields. Absent where unreadable.",
    "gauge",
)
WORKERS = _define("workers", MetricKind.GAUGE, "Workers by whether their heartbeat is recent: alive or stale.", "state")
JOB_STATUS = _define(
    "job_status", MetricKind.GAUGE, "Active jobs by status: waiting, running, paused, cancelling.", "status"
)
PAUSED_JOBS = _define(
    "paused_jobs", MetricKind.GAUGE, "Paused jobs by reason: request, ttl_pause, window, clock, other.", "reason"
)
OLDEST_JOB = _define(
    "oldest_active_job_age_seconds", MetricKind.GAUGE, "Age of the oldest active job; 0 if there is none."
)
TASK_STATUS = _define("task_status", MetricKind.GAUGE, "Tasks of active jobs: waiting, running, finished.", "status")
ACTIVE_TASKS = _define("active_tasks", MetricKind.GAUGE, "Tasks that a living worker is working on.", "table")
TABLES = _define(
    "tables", MetricKind.GAUGE, "Tables with a policy by health: on_time, paused, late, blocked.", "health"
)
NATIVE_TABLES = _define(
    "native_tables",
    MetricKind.GAUGE,
    "Tables whose rows the database deletes by a TTL of its own: `not_followed` by a policy, or in an `other_zone`.",
    "state",
)
BLOCKED = _define("blocked_tables", MetricKind.GAUGE, "Blocked tables by the code of the reason.", "code")
FAILING = _define(
    "failing_tables", MetricKind.GAUGE, "Tables whose newest job failed or timed out, or that cannot run one."
)
LATENESS = _define(
    "lateness_seconds",
    MetricKind.GAUGE,
    "Upper bound of how long an expired row has been waiting: now minus the cutoff of the newest job that left none.",
    "table",
)
PROMISE_USED = _define(
    "promise_used_ratio", MetricKind.GAUGE, "Lateness as a share of `ttl_delete_within`; above 1 is late.", "table"
)
WATERMARK_DELAY = _define(
    "watermark_delay_tables", MetricKind.GAUGE, "Tables by lateness, each in the first bucket that holds it.", "delay"
)
ETA = _define(
    "eta_seconds", MetricKind.GAUGE, "When the running job will be done at its pace; absent if unknown.", "table"
)
TOTAL_ROWS = _define("total_rows", MetricKind.GAUGE, "Rows, where `ttl_row_stats_poll_interval` counts them.", "table")
EXPIRED_ROWS = _define(
    "total_expired_rows", MetricKind.GAUGE, "Expired rows, where `ttl_row_stats_poll_interval` counts them.", "table"
)
HELD_ROWS = _define(
    "held_rows",
    MetricKind.GAUGE,
    "Expired rows that the newest job could not delete: a foreign key, a trigger or an error holds them.",
    "table",
)
LOCKED_ROWS = _define(
    "locked_rows",
    MetricKind.GAUGE,
    "Expired rows that the newest job left because other sessions had locked them.",
    "table",
)
ARCHIVED_ROWS = _define("archived_rows", MetricKind.GAUGE, "Rows in the files of an archive.", "table")
ARCHIVED_BYTES = _define("archived_bytes", MetricKind.GAUGE, "Size of the files of an archive.", "table")
EXPORT_WAITING = _define(
    "export_waiting_rows",
    MetricKind.GAUGE,
    "Rows that wait in an outbox for their export into files, at most, as a worker saw within the last seconds.",
    "table",
)
EXPORT_FAILING = _define(
    "export_failing",
    MetricKind.GAUGE,
    "1 where the last export into files met a problem, which blocks the table.",
    "table",
)
LAST_EXPORT = _define(
    "last_export_timestamp_seconds", MetricKind.GAUGE, "When rows were last written to a file; absent before.", "table"
)
INSERT_ROWS = _define(
    "insert_rows",
    MetricKind.GAUGE,
    "Rows inserted since the engine's counters began; absent where it keeps none.",
    "table",
)
LAST_SUCCESS = _define(
    "last_success_timestamp_seconds",
    MetricKind.GAUGE,
    "When the newest finished job ended; absent before.",
    "table",
)
NEXT_RUN = _define("next_run_timestamp_seconds", MetricKind.GAUGE, "When the next job is due.", "table")

DEFINITIONS = tuple(value for value in list(globals().values()) if isinstance(value, Definition))
"""In the order of the reference."""


def family(definition: Definition) -> GaugeMetricFamily:
    """An empty family to add samples to, for a collector."""
    return GaugeMetricFamily(definition.name, definition.help, labels=definition.labels)


class Metrics:
    """The process's own counters, on a registry of their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._counters = {
            definition.name: Counter(definition.name, definition.help, definition.labels, registry=self.registry)
            for definition in DEFINITIONS
            if definition.kind is MetricKind.COUNTER
        }
        self._query_duration = Histogram(
            QUERY_DURATION.name,
            QUERY_DURATION.help,
            QUERY_DURATION.labels,
            registry=self.registry,
            buckets=BUCKETS_SECONDS,
        )
        self._task_duration = Histogram(
            TASK_DURATION.name,
            TASK_DURATION.help,
            TASK_DURATION.labels,
            registry=self.registry,
            buckets=TASK_BUCKETS_SECONDS,
        )

    def query(self, table: str, sql_type: str, seconds: float, *, ok: bool = True) -> None:
        self.add(QUERIES, 1, table, sql_type, "ok" if ok else "error")
        if ok:
            self._query_duration.labels(table, sql_type).observe(seconds)

    def task(self, table: str, seconds: float) -> None:
        self._task_duration.labels(table).observe(seconds)

    def add(self, definition: Definition, amount: float, *labels: str) -> None:
        """Nothing is added where there is nothing, so that a series appears with its first event."""
        if amount > 0:
            counter = self._counters[definition.name]
            (counter.labels(*labels) if labels else counter).inc(amount)
