"""The JSON API's answers that the command line does not have."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lapse.app.records import Record, expiry_words, job_record, table_record
from lapse.catalog.tasks import TaskState
from lapse.catalog.workers import WorkerRow
from lapse.console.charts import Chart
from lapse.console.dashboard import LiveJob, Overview, PolicyView
from lapse.console.dialects import Declaration
from lapse.runner.controller import Reading
from lapse.runner.promise import Health


def overview_record(view: Overview) -> Record:
    return {
        "now": view.now.isoformat(),
        "policies": len(view.policies),
        **{word: view.count(word) for word in Health},
        "native_tables": len(view.undeclared),
        "active_jobs": len(view.jobs),
        "workers": view.workers,
        "workers_alive": view.workers_alive,
        "deleted_today": view.per_day[-1] if view.policies else 0,
    }


def policy_record(view: PolicyView) -> Record:
    health = view.health
    counted = health.counted
    return {
        "id": health.stored.id,
        **table_record(health.stored.table),
        "health": str(health.health),
        "blocked": None if health.blocked is None else str(health.blocked),
        "why": health.why,
        "lateness_seconds": health.lateness.total_seconds(),
        "promise_seconds": health.promise.total_seconds(),
        "expires": expiry_words(health.stored.policy),
        "policy": health.stored.policy.options(),
        "policy_version": health.stored.version,
        "estimated_rows": view.rows,
        "bytes": view.footprint.bytes,
        "counted_rows": counted.rows if counted else None,
        "expired_rows": counted.expired if counted else None,
        "counted_at": _time(counted.counted_at) if counted else None,
        "held_rows": health.held,
        "locked_rows": health.locked,
        "next_run_at": _time(health.next_run_at),
        "active_jobs": [job.id for job in health.jobs],
        "last_job": None if health.last is None else job_record(health.last),
    }


def live_job_record(live: LiveJob) -> Record:
    progress = live.progress
    return {
        **job_record(progress.job),
        "fraction": progress.fraction,
        "rows_per_second": round(live.rate, 1),
        "eta_seconds": None if progress.eta is None else round(progress.eta.total_seconds(), 1),
        "pause_reasons": list(progress.reasons),
        "tasks": [task_record(state) for state in progress.tasks],
    }


def task_record(state: TaskState) -> Record:
    return {
        "id": state.task.id,
        "ordinal": state.task.ordinal,
        "status": str(state.task.status),
        "owner": state.task.owner,
        "heartbeat_at": _time(state.heartbeat_at),
        "selected": state.task.counts.selected,
        "deleted": state.task.counts.deleted,
        "held": state.task.counts.held,
        "worked_seconds": round(state.worked_seconds, 3),
        "waited_seconds": round(state.waited_seconds, 3),
        "pause_reason": state.pause_reason,
        "last_error": state.last_error,
    }


def worker_record(worker: WorkerRow, alive: bool) -> Record:
    return {
        "id": worker.id,
        "address": worker.address,
        "version": worker.version,
        "started_at": _time(worker.started_at),
        "heartbeat_at": _time(worker.heartbeat_at),
        "alive": alive,
    }


def gauge_record(reading: Reading) -> Record:
    return {
        "name": reading.name,
        "value": reading.value,
        "soft": reading.soft,
        "unit": reading.unit,
        "pressure": reading.pressure,
        "stops": reading.stops,
        "counts": reading.counts,
        "table": None if reading.table is None else str(reading.table),
        "note": reading.note,
    }


def chart_record(chart: Chart) -> Record:
    return {"unit": chart.unit, "total": chart.total, "days": [{"day": f"{d}", "rows": rows} for d, rows in chart.rows]}


def declaration_record(declaration: Declaration) -> Record:
    return {"dialect": declaration.dialect, "sql": declaration.sql, "why_not": declaration.why_not}


def _time(value: datetime | None) -> Any:
    return None if value is None else value.isoformat()
