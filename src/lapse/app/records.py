"""What `--json` prints and the JSON API answers: stable names, ISO 8601 times, null for what is not there."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from lapse.app.archiving import ArchivedJob
from lapse.app.doctor.finding import Finding
from lapse.app.forecast import Forecast
from lapse.app.ledger_keys import DeletedRow, KeyHistory
from lapse.app.preview import Outlook, Preview
from lapse.app.status import TableStatus
from lapse.catalog.policies import StoredPolicy
from lapse.model.hold import Hold
from lapse.model.job import Job
from lapse.model.ledger import ChainVerdict, LedgerEntry
from lapse.model.policy import ColumnExpiry, Policy
from lapse.model.table import MANAGED_COLUMN, TableName
from lapse.runner.comments import CommentProblem
from lapse.runner.restoring import Restored
from lapse.runner.worker import RunResult

Record = dict[str, Any]


def table_record(name: TableName) -> Record:
    return {"table": name.name, "schema": name.schema, "partition": name.partition}


def job_record(job: Job) -> Record:
    counts = job.counts
    return {
        "job_id": job.id if job.native_id is None else None,
        "native_id": job.native_id,
        **table_record(job.table),
        "status": str(job.status),
        "reason": job.reason or job.waiting_for,
        "cutoff": _time(job.cutoff),
        "created_at": _time(job.created_at),
        "started_at": _time(job.started_at),
        "finished_at": _time(job.finished_at),
        "path": str(job.path.kind),
        "path_index": job.path.index,
        "path_evidence": job.path.evidence,
        "tasks_total": job.tasks_total,
        "tasks_finished": job.tasks_finished,
        "selected": counts.selected,
        "deleted": counts.deleted if job.is_count_known else None,
        "estimated": job.estimated,
        "held": counts.held,
        "skipped": counts.skipped,
        "errors": counts.errors,
        "batches": counts.batches,
        "policy_version": job.policy_version,
        "summary": None if job.summary is None else job.summary.record(),
    }


def entry_record(entry: LedgerEntry) -> Record:
    return {
        "sequence": entry.sequence,
        "entry_id": entry.id,
        "at": entry.at,
        "kind": entry.kind,
        "table": None if entry.table is None else entry.table.name,
        "schema": None if entry.table is None else entry.table.schema,
        "role": entry.role,
        "user": entry.user,
        "host": entry.host,
        "program": entry.program,
        "before": entry.was or None,
        "after": entry.became or None,
        "previous": entry.previous,
        "hash": entry.hash,
    }


def deleted_row_record(row: DeletedRow) -> Record:
    said = row.entry.became if row.entry is not None else {}
    return {
        "deleted_at": row.at,
        "job": row.job,
        "policy_version": said.get("policy_version"),
        "cutoff": said.get("cutoff"),
        "entry": None if row.entry is None else row.entry.sequence,
    }


def key_record(history: KeyHistory) -> Record:
    return {
        "table": history.table.name,
        "schema": history.table.schema,
        "key": list(history.key),
        "deleted": [deleted_row_record(each) for each in history.found],
        "keys_on_record": history.rows,
        "since": history.since,
        "until": history.until,
    }


def verdict_record(verdict: ChainVerdict) -> Record:
    return {
        "verified": verdict.holds,
        "entries": verdict.entries,
        "waiting": verdict.waiting,
        "pruned": verdict.pruned,
        "head": str(verdict.head),
        "broken_at": verdict.broken_at,
        "broken": verdict.broken,
    }


def hold_record(hold: Hold) -> Record:
    return {
        "hold_id": hold.id,
        **table_record(hold.table),
        "where": hold.where,
        "until": _time(hold.until),
        "reason": hold.reason,
        "placed_at": _time(hold.placed_at),
        "placed_by": hold.placed_by,
        "released_at": _time(hold.released_at),
        "released_by": hold.released_by,
    }


def archived_record(archived: ArchivedJob) -> Record:
    return {
        "job_id": archived.job,
        **table_record(archived.table),
        "archive": archived.archive,
        "files": archived.files,
        "rows": archived.rows,
        "waiting": archived.waiting,
        "bytes": archived.bytes,
        "first_archived_at": _time(archived.first),
        "last_archived_at": _time(archived.last),
        "moved": archived.moved,
        "restored": archived.restored,
        "state": str(archived.verdict),
        "problems": list(archived.problems),
    }


def restored_record(restored: Restored) -> Record:
    return {
        **table_record(restored.table),
        "archive": restored.archive,
        "rows": restored.rows,
        "restored": restored.restored,
        "existing": restored.existing,
        "refused": restored.refused,
        "reason": restored.reason,
        "missing_columns": list(restored.dropped),
        "hold": None if restored.hold is None else hold_record(restored.hold),
        "dry_run": restored.dry_run,
    }


def status_record(status: TableStatus) -> Record:
    return {
        **table_record(status.table),
        "state": status.state,
        "reason": status.reason,
        "expires": expiry_words(status.stored.policy),
        "holds": [
            {"hold_id": term.id, "where": term.where, "until": _time(term.until)} for term in status.stored.holds
        ],
        "policy": status.stored.policy.options(),
        "policy_version": status.stored.version,
        "next_run_at": _time(status.next_run_at),
        "grace_until": _time(status.grace_until),
        "current_job": None if status.current is None else job_record(status.current),
        "last_job": None if status.last is None else job_record(status.last),
        "statistics": None if status.statistics is None else json.loads(status.statistics),
        "native": dict(status.native),
        "health": str(status.promise.health),
        "blocked": None if status.blocked is None else str(status.blocked),
        "blocked_since": _time(status.blocked_since),
        "why": status.promise.reason,
        "held_rows": status.held,
        "locked_rows": status.locked,
        "lateness_seconds": status.promise.lateness.total_seconds(),
        "delete_within_seconds": status.promise.within.total_seconds(),
    }


def comment_record(comment: CommentProblem) -> Record:
    """A table whose comment asks for a policy that it does not have, under the names of `status_record`."""
    return {
        **table_record(comment.table),
        "state": "proposed" if comment.proposal else "refused" if comment.advice is None else "native",
        "reason": comment.reason,
        "expires": None if comment.policy is None else expiry_words(comment.policy),
        "policy": None if comment.policy is None else comment.policy.options(),
        "comment": comment.text,
        "fix": comment.fix,
    }


def run_record(result: RunResult) -> Record:
    return {
        "deleted": result.deleted,
        "complete": result.complete,
        "failed": result.failed,
        "reclaimed_bytes": result.reclaimed_bytes,
        "jobs": [job_record(job) for job in result.jobs],
        "skipped": [{**table_record(skip.table), "reason": skip.reason, "held": skip.held} for skip in result.skipped],
        "proposals": [comment_record(each) for each in result.proposals],
        "exports": [
            {
                **table_record(each.table),
                "archive": each.destination,
                "files": each.files,
                "rows": each.rows,
                "bytes": each.bytes,
                "waiting": each.waiting,
                "problem": each.problem,
            }
            for each in result.exports
        ],
    }


def preview_record(preview: Preview) -> Record:
    survey = preview.survey
    return {
        **table_record(preview.table),
        "cutoff": _time(preview.cutoff),
        "expires": expiry_words(preview.policy),
        "candidate": preview.is_candidate,
        "grace_until": _time(preview.grace_until),
        "note": preview.note,
        "rows": survey.rows,
        "expired": survey.expired,
        **_outlook_record(preview.outlook),
        "expired_bytes": survey.bytes,
        "exact": survey.exact,
        "method": survey.method,
        "margin": survey.margin,
        "expected_seconds": preview.seconds,
        "oldest": _time(survey.oldest),
        "newest": _time(survey.newest),
        "path": str(preview.path.kind),
        "path_index": preview.path.index,
        "path_evidence": preview.path.evidence,
        "archive": preview.policy.archive,
        "condition": preview.condition,
        "sample": [dict(row) for row in preview.sample],
        "foreign_keys": [
            {
                "table": str(child.reference.table),
                "columns": list(child.reference.columns),
                "action": str(child.reference.action),
                "indexed": child.reference.indexed,
                "rows_per_row": child.per_row,
            }
            for child in preview.children
        ],
        "advice": [{"text": advice.text, "statement": advice.statement} for advice in preview.advice],
        "forecast": forecast_record(preview.forecast),
    }


def _outlook_record(outlook: Outlook) -> Record:
    """What becomes of the expired rows, and what goes or changes with them."""
    return {
        "would_delete": outlook.deleted,
        "held": outlook.held,
        "held_by": [str(name) for name in outlook.holders],
        "touched": [
            {"table": str(each.table), "deleted": each.deleted, "set_null": each.unset} for each in outlook.touched
        ],
        "touched_exact": outlook.followed,
        "not_looked_into": [str(name) for name in outlook.unknown],
    }


def forecast_record(forecast: Forecast) -> Record:
    steady = forecast.steady
    return {
        "at": _time(forecast.at),
        "ttl": None if forecast.ttl is None else str(forecast.ttl),
        "rows": forecast.rows,
        "bytes": forecast.bytes,
        "expired": forecast.expired,
        "exact": forecast.exact,
        "method": forecast.method,
        "margin": forecast.margin,
        "days": [{"start": _time(day.start), "rows": day.rows, "bytes": day.bytes} for day in forecast.days],
        "steady_state": None
        if steady is None
        else {
            "ttl": str(steady.ttl),
            "rows_per_day": steady.rows_per_day,
            "rows": steady.rows,
            "bytes": steady.bytes,
        },
    }


def finding_record(finding: Finding) -> Record:
    return {
        "level": str(finding.level),
        "subject": finding.subject,
        "text": finding.text,
        "fix": finding.fix,
        "fixed": finding.fixed,
    }


def deletion_words(stored: StoredPolicy) -> str:
    """When rows go, and that some stay."""
    now = datetime.now(UTC)
    numbers = [str(term.id) for term in stored.holds if term.until is None or now < term.until]
    words = expiry_words(stored.policy)
    return f"{words}; hold{'' if len(numbers) == 1 else 's'} {', '.join(numbers)}" if numbers else words


def expiry_words(policy: Policy) -> str:
    """Which rows expire and when, in words."""
    words = _expiry_words(policy)
    words = words if policy.filter is None else f"{words}, if {policy.filter}"
    return words if policy.keep_last is None else f"{words}, but for the last {policy.keep_last}"


def _expiry_words(policy: Policy) -> str:
    expiry = policy.expiry
    if not isinstance(expiry, ColumnExpiry):
        return f"at {expiry.text}"
    if expiry.column == MANAGED_COLUMN and policy.expire_after is not None and policy.column is None:
        return f"{policy.expire_after} after insert or update"
    return f"{expiry.after} after {expiry.column}" if expiry.after else f"at {expiry.column}"


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()
