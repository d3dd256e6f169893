"""The JSON API under /api/v1: one table of operations, from which come the routes and the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lapse.app.records import forecast_record, job_record, preview_record
from lapse.console import actions, records
from lapse.console.actions import JOB_ACTIONS, TABLE_ACTIONS
from lapse.console.charts import deleted_chart
from lapse.console.dashboard import Dashboard
from lapse.console.dialects import declarations
from lapse.console.listing import Listing
from lapse.errors import InvalidValue
from lapse.model.settings import SETTINGS

PREFIX = "/api/v1"
MAX_LIMIT = 1000
DEFAULT_LIMIT = 50
CHART_DAYS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """`answers` names the schema of the answer, `[]` behind it a list of them; `takes` are query parameters."""

    method: str
    path: str
    summary: str
    answers: str
    handle: Callable[[Request], Any]
    takes: tuple[str, ...] = ()

    @property
    def is_action(self) -> bool:
        return self.method == "POST"


class Api:
    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self.operations = self._operations()

    def routes(self) -> list[Route]:
        return [Route(PREFIX + _typed(each.path), _answering(each), methods=[each.method]) for each in self.operations]

    def _operations(self) -> tuple[Operation, ...]:
        def get(path: str, summary: str, answers: str, handle: Callable[[Request], Any], *takes: str) -> Operation:
            return Operation(method="GET", path=path, summary=summary, answers=answers, handle=handle, takes=takes)

        looking = (
            get("/overview", "How everything is doing, in numbers", "Overview", self._overview),
            get("/tables", "Every policy with its health", "Policy[]", self._tables),
            get("/tables/{policy_id}", "One policy with its health", "Policy", self._table),
            get("/tables/{policy_id}/sql", "The policy as SQL in each dialect", "Declaration[]", self._sql),
            get("/tables/{policy_id}/preview", "What a run would do; may read the table", "Preview[]", self._preview),
            get("/tables/{policy_id}/forecast", "Rows expiring per day to come", "Forecast", self._forecast, "ttl"),
            get("/tables/{policy_id}/deleted", "Rows deleted per day", "Chart", self._deleted),
            get("/tables/{policy_id}/history", "Jobs of a table, newest first", "Job[]", self._table_history, "limit"),
            get("/jobs", "Active jobs with progress, rate and tasks", "LiveJob[]", self._jobs),
            get("/jobs/{job_id}", "One job, active or ended", "LiveJob", self._job),
            get("/history", "Jobs of all tables, newest first", "Job[]", self._history, "limit"),
            get("/workers", "The fleet", "Worker[]", self._workers),
            get("/gauges", "How strained the server is, as the controller sees it", "Gauge[]", self._gauges),
            get("/settings", "Global settings", "Setting[]", self._settings),
        )
        return (*looking, *self._table_actions(), *self._job_actions())

    def _table_actions(self) -> list[Operation]:
        def act(name: str) -> Callable[[Request], Any]:
            def handle(request: Request) -> Any:
                who = request.state.visitor.who
                actions.act_on_table(self._dashboard, request.path_params["policy_id"], TABLE_ACTIONS[name], who)
                return self._table(request)

            return handle

        return [
            Operation(
                method="POST",
                path=f"/tables/{{policy_id}}/{name}",
                summary=action.effect,
                answers="Policy",
                handle=act(name),
            )
            for name, action in TABLE_ACTIONS.items()
        ]

    def _job_actions(self) -> list[Operation]:
        def act(name: str) -> Callable[[Request], Any]:
            def handle(request: Request) -> Any:
                who = request.state.visitor.who
                actions.act_on_job(self._dashboard, request.path_params["job_id"], JOB_ACTIONS[name], who)
                return self._job(request)

            return handle

        return [
            Operation(
                method="POST",
                path=f"/jobs/{{job_id}}/{name}",
                summary=action.effect,
                answers="LiveJob",
                handle=act(name),
            )
            for name, action in JOB_ACTIONS.items()
        ]

    def _overview(self, request: Request) -> Any:
        return records.overview_record(self._dashboard.overview())

    def _tables(self, request: Request) -> Any:
        return [records.policy_record(view) for view in Listing().matching(self._dashboard.overview().policies)]

    def _table(self, request: Request) -> Any:
        with self._dashboard.look() as look:
            return records.policy_record(look.policy(request.path_params["policy_id"]))

    def _sql(self, request: Request) -> Any:
        stored = self._dashboard.stored(request.path_params["policy_id"])
        return [records.declaration_record(each) for each in declarations(stored)]

    def _preview(self, request: Request) -> Any:
        stored = self._dashboard.stored(request.path_params["policy_id"])
        return [preview_record(each) for each in self._dashboard.database.preview(stored)]

    def _forecast(self, request: Request) -> Any:
        stored = self._dashboard.stored(request.path_params["policy_id"])
        return forecast_record(self._dashboard.database.forecast(stored, ttl=request.query_params.get("ttl") or None))

    def _deleted(self, request: Request) -> Any:
        with self._dashboard.look() as look:
            stored = look.stored(request.path_params["policy_id"])
            per_day = look.seen.deleted_per_day(CHART_DAYS).get(stored.id, {})
            return records.chart_record(deleted_chart(look.now, per_day, CHART_DAYS))

    def _table_history(self, request: Request) -> Any:
        limit = _limit(request)
        with self._dashboard.look() as look:
            stored = look.stored(request.path_params["policy_id"])
            return [job_record(job) for job in look.seen.history(stored, limit=limit)]

    def _jobs(self, request: Request) -> Any:
        with self._dashboard.look() as look:
            return [records.live_job_record(live) for live in look.jobs]

    def _job(self, request: Request) -> Any:
        with self._dashboard.look() as look:
            return records.live_job_record(look.job(request.path_params["job_id"]))

    def _history(self, request: Request) -> Any:
        limit = _limit(request)
        with self._dashboard.look() as look:
            return [job_record(job) for job in look.seen.history(limit=limit)]

    def _workers(self, request: Request) -> Any:
        with self._dashboard.look() as look:
            seen = look.seen
            return [records.worker_record(worker, seen.workers_alive[worker.id]) for worker in seen.workers]

    def _gauges(self, request: Request) -> Any:
        with self._dashboard.look() as look:
            return [records.gauge_record(reading) for reading in look.seen.gauges]

    def _settings(self, request: Request) -> Any:
        current = self._dashboard.database.settings()
        return [
            {"name": name, "value": current[name], "default": setting.default, "help": setting.help}
            for name, setting in SETTINGS.items()
        ]


def _answering(operation: Operation) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        return json_response(operation.handle(request))

    return endpoint


def json_response(value: object, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return Response(text, status, media_type="application/json")


def _typed(path: str) -> str:
    return path.replace("_id}", "_id:int}")


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidValue("limit", text, f"must be a number from 1 to {MAX_LIMIT}")
    return int(text)
