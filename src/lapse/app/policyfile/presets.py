"""Tables of well-known software that are never cleaned, and how long their rows are usually kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lapse.model.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """`columns` tell the table from others of the same name; `keys` are what the file would say."""

    title: str
    table: str
    columns: frozenset[str]
    keys: Mapping[str, str]


def _preset(title: str, table: str, columns: str, **keys: str) -> Preset:
    return Preset(title=title, table=table, columns=frozenset(columns.split()), keys=keys)


PRESETS = (
    _preset("Django sessions", "django_session", "session_key expire_date", ttl_expiration_expression="expire_date"),
    _preset("Celery in Django", "django_celery_results_taskresult", "date_done", column="date_done", after="30 days"),
    _preset("Celery results", "celery_taskmeta", "task_id date_done", column="date_done", after="7 days"),
    _preset("Celery group results", "celery_tasksetmeta", "taskset_id date_done", column="date_done", after="7 days"),
    _preset("Django OAuth tokens", "oauth2_provider_accesstoken", "token expires", column="expires", after="30 days"),
    _preset("Airflow audit log", "log", "dttm dag_id event", column="dttm", after="90 days"),
    _preset("Airflow jobs", "job", "job_type latest_heartbeat", column="latest_heartbeat", after="90 days"),
    _preset("Rails sessions", "sessions", "session_id data updated_at", column="updated_at", after="30 days"),
    _preset("Laravel sessions", "sessions", "payload last_activity", column="last_activity", after="1 day"),
    _preset("Laravel failed jobs", "failed_jobs", "failed_at payload", column="failed_at", after="30 days"),
    _preset("Laravel password resets", "password_reset_tokens", "token created_at", column="created_at", after="1 day"),
    _preset("pg_cron's own history", "job_run_details", "jobid end_time", column="end_time", after="7 days"),
    _preset("n8n executions", "execution_entity", "workflowId stoppedAt", column="stoppedAt", after="14 days"),
    _preset("Prefect event log", "events", "occurred resource_id", column="occurred", after="30 days"),
)


def preset_for(table: Table) -> Preset | None:
    names = {column.name for column in table.columns}
    return next((each for each in PRESETS if each.table == table.name.name and each.columns <= names), None)
