"""The pages that people read. Each is rendered whole, and for htmx only its live part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from lapse._version import __version__
from lapse.app.records import expiry_words
from lapse.console import actions, words
from lapse.console.actions import JOB_ACTIONS, TABLE_ACTIONS, Action
from lapse.console.charts import deleted_chart, forecast_chart
from lapse.console.desk import Desk, LiveJob
from lapse.console.dialects import declarations
from lapse.errors import Refused
from lapse.model.settings import SETTINGS

TEMPLATES = Path(__file__).parent / "templates"
HISTORY = 25
CHART_DAYS = 30
MAX_FORM_BYTES = 4096


class Pages:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._templates = Environment(
            loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= words.FILTERS
        self._templates.filters["expiry"] = expiry_words
        self._templates.globals |= {"version": __version__, "place": desk.place, "options": desk.options}

    def routes(self) -> list[Route]:
        return [
            Route("/", self.overview),
            Route("/jobs", self.jobs),
            Route("/jobs/{job_id:int}", self.job),
            Route("/tables/{policy_id:int}", self.table),
            Route("/tables/{policy_id:int}/preview", self.preview),
            Route("/tables/{policy_id:int}/forecast", self.forecast),
            Route("/fleet", self.fleet),
            Route("/settings", self.settings),
            Route("/tables/{policy_id:int}/{action:str}", self.ask_about_table),
            Route("/jobs/{job_id:int}/{action:str}", self.ask_about_job),
            Route("/tables/{policy_id:int}/{action:str}", self.act_on_table, methods=["POST"]),
            Route("/jobs/{job_id:int}/{action:str}", self.act_on_job, methods=["POST"]),
        ]

    # Looking. Plain functions: Starlette runs them in threads, as they wait for the database.

    def overview(self, request: Request) -> Response:
        return self._page(request, "overview", view=self._desk.overview())

    def jobs(self, request: Request) -> Response:
        return self._page(
            request,
            "jobs",
            now=self._desk.database.clock(),
            jobs=self._desk.jobs(),
            history=[job for job in self._desk.history(limit=HISTORY) if not job.status.is_active],
        )

    def job(self, request: Request) -> Response:
        live = self._job(request)
        known = {view.health.stored.id for view in self._desk.overview().policies}
        return self._page(
            request,
            "job",
            now=self._desk.database.clock(),
            live=live,
            times=_times(live),
            has_table=live.progress.job.policy_id in known,
            offered=actions.offered_on_job(live.progress.job),
            said=self._said(request, JOB_ACTIONS, str(live.progress.job.table)),
        )

    def table(self, request: Request) -> Response:
        view = self._desk.policy(request.path_params["policy_id"])
        stored, database = view.health.stored, self._desk.database
        now = database.clock()
        chart = deleted_chart(now, database.deleted_per_day(CHART_DAYS).get(stored.id, {}), CHART_DAYS)
        ids = {job.id for job in view.health.jobs}
        return self._page(
            request,
            "table",
            now=now,
            view=view,
            stored=stored,
            jobs=[job for job in self._desk.jobs() if job.progress.job.id in ids],
            history=[job for job in self._desk.history(stored, limit=HISTORY) if not job.status.is_active],
            declarations=declarations(stored),
            chart=chart,
            can_forecast=self._desk.can_forecast,
            offered=actions.offered_on_table(view.health),
            said=self._said(request, TABLE_ACTIONS, str(stored.table)),
        )

    def preview(self, request: Request) -> Response:
        """Counts on demand only: where no index serves, it reads the table."""
        stored = self._desk.stored(request.path_params["policy_id"])
        return self._page(request, "preview", stored=stored, previews=self._desk.database.preview(stored))

    def forecast(self, request: Request) -> Response:
        """Asked for by the table's page after it is there: an estimate, but not for nothing."""
        stored = self._desk.stored(request.path_params["policy_id"])
        ttl = request.query_params.get("ttl", "").strip() or None
        found = self._desk.forecast(stored, ttl)
        chart = forecast_chart(found)
        return self._page(request, "forecast", stored=stored, forecast=found, chart=chart, ttl=ttl or "")

    def fleet(self, request: Request) -> Response:
        database = self._desk.database
        workers = self._desk.workers()
        jobs = self._desk.jobs()
        at_work: dict[str, list[Any]] = {}
        for live in jobs:
            for state in live.progress.tasks:
                if state.task.owner is not None and state.task.status == "running":
                    at_work.setdefault(state.task.owner, []).append((live.progress.job, state))
        return self._page(
            request,
            "fleet",
            now=database.clock(),
            workers=workers,
            alive=self._desk.alive(workers),
            at_work=at_work,
            waiting=sum(state.task.status == "waiting" for live in jobs for state in live.progress.tasks),
            own=self._desk.worker_id,
            gauges=database.gauges(),
            mode=database.settings()["lapse_mode"],
        )

    def settings(self, request: Request) -> Response:
        current = self._desk.database.settings()
        rows = [(setting, current[name]) for name, setting in SETTINGS.items()]
        return self._page(request, "settings", rows=rows)

    # Doing

    def ask_about_table(self, request: Request) -> Response:
        action = actions.find(TABLE_ACTIONS, request.path_params["action"])
        stored = self._desk.stored(request.path_params["policy_id"])
        return self._ask(request, action, str(stored.table), f"/tables/{stored.id}")

    def ask_about_job(self, request: Request) -> Response:
        action = actions.find(JOB_ACTIONS, request.path_params["action"])
        job = self._job(request).progress.job
        return self._ask(request, action, f"{job.table}", f"/jobs/{job.id}")

    async def act_on_table(self, request: Request) -> Response:
        action = actions.find(TABLE_ACTIONS, request.path_params["action"])
        policy_id = request.path_params["policy_id"]
        return await self._act(request, action, f"/tables/{policy_id}", actions.act_on_table, policy_id)

    async def act_on_job(self, request: Request) -> Response:
        action = actions.find(JOB_ACTIONS, request.path_params["action"])
        job_id = request.path_params["job_id"]
        return await self._act(request, action, f"/jobs/{job_id}", actions.act_on_job, job_id)

    async def _act(
        self, request: Request, action: Action, back: str, act: Callable[[Desk, int, Action], None], key: int
    ) -> Response:
        body = await request.body()
        form = parse_qs(body[:MAX_FORM_BYTES].decode(errors="replace"))
        if not self._desk.signer.is_form_token(request.state.visitor.session, form.get("csrf", [""])[0]):
            raise Refused("this form is out of date", hint="go back, reload the page and try again")
        await run_in_threadpool(act, self._desk, key, action)
        return RedirectResponse(f"{back}?said={action.name}", 303)

    def _ask(self, request: Request, action: Action, table: str, back: str) -> Response:
        if not self._desk.options.allow_actions:
            raise Refused("this console only looks", hint="start it with --allow-actions")
        return self._page(request, "confirm", action=action, table=table, back=back)

    def _job(self, request: Request) -> LiveJob:
        return self._desk.live(self._desk.database.job(request.path_params["job_id"]))

    @staticmethod
    def _said(request: Request, known: dict[str, Action], table: str) -> str | None:
        action = known.get(request.query_params.get("said", ""))
        return action.done.format(table) if action else None

    def _page(self, request: Request, name: str, **values: Any) -> Response:
        live = request.headers.get("hx-request") == "true"
        template = self._templates.get_template(f"{'_' if live else ''}{name}.html")
        text = template.render(
            page=name, csrf=self._desk.signer.form_token(request.state.visitor.session), path=request.url.path, **values
        )
        return HTMLResponse(text, headers={"Vary": "HX-Request"})

    def problem(self, request: Request, status: int, title: str, hint: str | None) -> Response:
        is_live = request.headers.get("hx-request") == "true"
        template = self._templates.get_template("_problem.html" if is_live else "problem.html")
        return HTMLResponse(template.render(page="problem", status=status, title=title, hint=hint), status)


def _times(live: LiveJob) -> str:
    """Where the time of the job's tasks went; once it has ended its summary knows."""
    tasks, summary = live.progress.tasks, json.loads(live.progress.job.summary or "{}")
    worked = sum(state.worked_seconds for state in tasks) or summary.get("worked_seconds", 0.0)
    waited = sum(state.waited_seconds for state in tasks) or summary.get("waited_seconds", 0.0)
    return f"{words.duration(worked)} in statements, {words.duration(waited)} waiting, all tasks together"
