"""The pages that people read. Each is rendered whole, and for htmx only its live part."""

from __future__ import annotations

import gzip
import hashlib
import logging
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
from lapse.app.ledger import summary, who
from lapse.app.records import deletion_words, expiry_words
from lapse.console import actions, words
from lapse.console.actions import JOB_ACTIONS, TABLE_ACTIONS, ActionButton
from lapse.console.charts import deleted_chart, forecast_chart
from lapse.console.dashboard import Dashboard, LiveJob
from lapse.console.dialects import declarations
from lapse.console.listing import Listing
from lapse.errors import InvalidValue, Refused, UsageError
from lapse.model.actor import acting
from lapse.model.job import JobSummary
from lapse.model.settings import SETTINGS
from lapse.model.settings import find as find_setting

TEMPLATES = Path(__file__).parent / "templates"
HISTORY = 25
ENTRIES = 50
"""Of the ledger, on one page."""
CHART_DAYS = 30
MAX_FORM_BYTES = 4096
ID_DIGITS = 18
LIVE = ("overview", "jobs", "job", "table", "fleet", "databases")
MARK_HEADER = "X-Lapse-Mark"
"""What a browser has of a live part, so that it is not sent again."""

_POLICY = "'ttl_duration=2592000;ttl_col=created_at;'"
COMMENTS = {
    "postgres": f"COMMENT ON TABLE events IS {_POLICY};",
    "mysql": f"ALTER TABLE events COMMENT = {_POLICY};",
}
"""A policy in the comment of a table, by dialect, for those that have comments."""

log = logging.getLogger(__name__)


def environment() -> Environment:
    """What pages are rendered with."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    templates.filters |= words.FILTERS
    templates.filters["expiry"] = expiry_words
    templates.filters["deletion"] = deletion_words
    templates.globals["version"] = __version__
    return templates


class Pages:
    def __init__(self, dashboard: Dashboard, *, has_stores: bool = False) -> None:
        self._dashboard = dashboard
        self._templates = environment()
        self._templates.globals |= {
            "place": dashboard.place,
            "options": dashboard.options,
            "has_stores": has_stores,
            "has_database": True,
            "root": dashboard.root,
            "comment": COMMENTS.get(dashboard.database.engine.dialect),
        }

    def routes(self) -> list[Route]:
        return [
            Route("/", self.overview),
            Route("/jobs", self.jobs),
            Route("/jobs/{job_id:int}", self.job),
            Route("/tables/{policy_id:int}", self.table),
            Route("/tables/{policy_id:int}/preview", self.preview),
            Route("/tables/{policy_id:int}/forecast", self.forecast),
            Route("/fleet", self.fleet),
            Route("/ledger", self.ledger),
            Route("/settings", self.settings),
            Route("/settings/{name:str}", self.change_setting, methods=["POST"]),
            Route("/tables/{policy_id:int}/{action:str}", self.ask_about_table),
            Route("/jobs/{job_id:int}/{action:str}", self.ask_about_job),
            Route("/tables/{policy_id:int}/{action:str}", self.act_on_table, methods=["POST"]),
            Route("/jobs/{job_id:int}/{action:str}", self.act_on_job, methods=["POST"]),
        ]

    # Looking. Plain functions: Starlette runs them in threads, as they wait for the database.

    def overview(self, request: Request) -> Response:
        view, listing = self._dashboard.overview(), Listing.read(request.query_params)
        matching = listing.matching(view.policies)
        rows = listing.shown(matching)
        confirm = TABLE_ACTIONS["confirm"]
        return self.page(request, "overview", view=view, listing=listing, matching=matching, rows=rows, confirm=confirm)

    def jobs(self, request: Request) -> Response:
        with self._dashboard.look() as look:
            values: dict[str, Any] = {
                "now": look.now,
                "jobs": look.jobs,
                "history": [job for job in look.seen.history(limit=HISTORY) if not job.status.is_active],
                "known": look.policy_ids,
            }
        return self.page(request, "jobs", **values)

    def job(self, request: Request) -> Response:
        with self._dashboard.look() as look:
            live = look.job(request.path_params["job_id"])
            now, has_table = look.now, live.progress.job.policy_id in look.policy_ids
        return self.page(
            request,
            "job",
            now=now,
            live=live,
            times=_times(live),
            has_table=has_table,
            offered=actions.offered_on_job(live.progress.job),
            said=self._said(request, JOB_ACTIONS, str(live.progress.job.table)),
        )

    def table(self, request: Request) -> Response:
        with self._dashboard.look() as look:
            view, now, live_jobs = look.policy(request.path_params["policy_id"]), look.now, look.jobs
            stored = view.health.stored
            per_day = look.seen.deleted_per_day(CHART_DAYS).get(stored.id, {})
            history = [job for job in look.seen.history(stored, limit=HISTORY) if not job.status.is_active]
        ids = {job.id for job in view.health.jobs}
        return self.page(
            request,
            "table",
            now=now,
            view=view,
            stored=stored,
            jobs=[job for job in live_jobs if job.progress.job.id in ids],
            history=history,
            declarations=declarations(stored),
            chart=deleted_chart(now, per_day, CHART_DAYS),
            offered=actions.offered_on_table(view.health),
            said=self._said(request, TABLE_ACTIONS, str(stored.table)),
        )

    def preview(self, request: Request) -> Response:
        """Counts on demand only: where no index serves, it reads the table."""
        stored = self._dashboard.stored(request.path_params["policy_id"])
        return self.page(request, "preview", stored=stored, previews=self._dashboard.database.preview(stored))

    def forecast(self, request: Request) -> Response:
        """Asked for by the table's page after it is there: an estimate, but not for nothing."""
        stored = self._dashboard.stored(request.path_params["policy_id"])
        ttl = request.query_params.get("ttl", "").strip() or None
        problem = None
        try:
            found = self._dashboard.database.forecast(stored, ttl=ttl)
        except UsageError as error:
            # The form stays, with what was typed, and so does the chart of the policy as it is.
            problem, found = error.message, self._dashboard.database.forecast(stored)
        values = {"forecast": found, "chart": forecast_chart(found), "ttl": ttl or "", "problem": problem}
        return self.page(request, "forecast", status=200 if problem is None else 400, stored=stored, **values)

    def fleet(self, request: Request) -> Response:
        with self._dashboard.look() as look:
            jobs, seen = look.jobs, look.seen
            values: dict[str, Any] = {
                "now": look.now,
                "workers": seen.workers,
                "alive": seen.workers_alive,
                "gauges": seen.gauges,
                "mode": seen.settings.mode,
            }
        at_work: dict[str, list[Any]] = {}
        for live in jobs:
            for state in live.progress.tasks:
                if state.task.owner is not None and state.task.status == "running":
                    at_work.setdefault(state.task.owner, []).append((live.progress.job, state))
        return self.page(
            request,
            "fleet",
            at_work=at_work,
            waiting=sum(state.task.status == "waiting" for live in jobs for state in live.progress.tasks),
            own=self._dashboard.worker_id,
            **values,
        )

    def ledger(self, request: Request) -> Response:
        before = request.query_params.get("before", "")
        if before and not (before.isdecimal() and len(before) <= ID_DIGITS):
            raise InvalidValue("before", before, "is not the id of an entry")
        with self._dashboard.look() as look:
            found = look.seen.ledger(limit=ENTRIES + 1, before=int(before) if before else None)
            head = look.seen.ledger_head
        rows = [(entry, who(entry), summary(entry)) for entry in found[:ENTRIES]]
        older = found[ENTRIES - 1].id if len(found) > ENTRIES else None
        return self.page(request, "ledger", rows=rows, older=older, head=head, is_newest=not before)

    def settings(self, request: Request) -> Response:
        current = self._dashboard.database.settings()
        rows = [(setting, current[name]) for name, setting in SETTINGS.items()]
        said = request.query_params.get("said", "")
        return self.page(request, "settings", rows=rows, said=said if said in SETTINGS else None)

    # Doing

    def ask_about_table(self, request: Request) -> Response:
        action = actions.find(TABLE_ACTIONS, request.path_params["action"])
        stored = self._dashboard.stored(request.path_params["policy_id"])
        self.require_actions(request)
        said = actions.numbers(self._dashboard, stored.id, action)
        return self.ask(request, action, str(stored.table), f"{self._dashboard.root}/tables/{stored.id}", said)

    def ask_about_job(self, request: Request) -> Response:
        action = actions.find(JOB_ACTIONS, request.path_params["action"])
        job = self._job(request).progress.job
        return self.ask(request, action, f"{job.table}", f"{self._dashboard.root}/jobs/{job.id}")

    async def change_setting(self, request: Request) -> Response:
        name = find_setting(request.path_params["name"]).name
        form = await self.form(request)
        value = form.get("value", [""])[0].strip()
        reset = "reset" in form
        visitor = request.state.visitor.who
        log.info("console: %s asked to set %s to %s", visitor, name, "its default" if reset else repr(value))
        with acting(user=visitor, program=actions.PROGRAM):
            if reset:
                await run_in_threadpool(self._dashboard.database.reset_setting, name)
            else:
                await run_in_threadpool(self._dashboard.database.set_setting, name, value)
        return RedirectResponse(f"{self._dashboard.root}/settings?said={name}", 303)

    async def act_on_table(self, request: Request) -> Response:
        action = actions.find(TABLE_ACTIONS, request.path_params["action"])
        policy_id = request.path_params["policy_id"]
        return await self._act(
            request, action, f"{self._dashboard.root}/tables/{policy_id}", actions.act_on_table, policy_id
        )

    async def act_on_job(self, request: Request) -> Response:
        action = actions.find(JOB_ACTIONS, request.path_params["action"])
        job_id = request.path_params["job_id"]
        return await self._act(request, action, f"{self._dashboard.root}/jobs/{job_id}", actions.act_on_job, job_id)

    async def _act(
        self,
        request: Request,
        action: ActionButton,
        back: str,
        act: Callable[[Dashboard, int, ActionButton, str], None],
        key: int,
    ) -> Response:
        await self.form(request)
        await run_in_threadpool(act, self._dashboard, key, action, request.state.visitor.who)
        return RedirectResponse(f"{back}?said={action.name}", 303)

    async def form(self, request: Request) -> dict[str, list[str]]:
        """What was sent, from a page of this session. Raises Refused."""
        body = await request.body()
        form = parse_qs(body[:MAX_FORM_BYTES].decode(errors="replace"), keep_blank_values=True)
        if not self._dashboard.signer.is_form_token(request.state.visitor.session, form.get("csrf", [""])[0]):
            raise Refused("this form is out of date", hint="go back, reload the page and try again")
        return form

    def require_actions(self, request: Request) -> None:
        if not self._dashboard.options.allow_actions:
            raise Refused("this console is read-only", hint="start it with --allow-actions")
        if not request.state.visitor.may_act:
            raise Refused("you may look and not act: your role is viewer")

    def ask(
        self,
        request: Request,
        action: ActionButton,
        table: str,
        back: str,
        numbers: str | None = None,
        *,
        leave: str | None = None,
    ) -> Response:
        """`leave` is the page to go back to, where that is not `back`."""
        self.require_actions(request)
        return self.page(
            request, "confirm", action=action, table=table, back=back, leave=leave or back, numbers=numbers
        )

    def _job(self, request: Request) -> LiveJob:
        with self._dashboard.look() as look:
            return look.job(request.path_params["job_id"])

    @staticmethod
    def _said(request: Request, known: dict[str, ActionButton], table: str) -> str | None:
        action = known.get(request.query_params.get("said", ""))
        return action.done.format(table) if action else None

    def page(self, request: Request, name: str, *, status: int = 200, **values: Any) -> Response:
        live = request.headers.get("hx-request") == "true"
        template = self._templates.get_template(f"{'_' if live else ''}{name}.html")
        text = template.render(
            page=name,
            csrf=self._dashboard.signer.form_token(request.state.visitor.session),
            path=request.url.path,
            **visitor_values(request),
            **values,
        )
        if live and name in LIVE:
            return refreshed(request, text)
        return HTMLResponse(text, status, headers={"Vary": "HX-Request"})

    def problem(self, request: Request, status: int, title: str, hint: str | None) -> Response:
        is_live = request.headers.get("hx-request") == "true"
        template = self._templates.get_template("_problem.html" if is_live else "problem.html")
        shown = template.render(page="problem", status=status, title=title, hint=hint, **visitor_values(request))
        return HTMLResponse(shown, status)


def visitor_values(request: Request) -> dict[str, Any]:
    """What every page has to know of who looks at it."""
    visitor = request.state.visitor
    return {"user": visitor.session.user, "may_act": visitor.may_act}


def refreshed(request: Request, text: str) -> Response:
    """A live part: nothing at all where the browser has it already, and otherwise as small as it can be sent. No form
    token is in one, so that it may be compressed."""
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    headers = {"Vary": "HX-Request", MARK_HEADER: mark}
    if request.headers.get(MARK_HEADER) == mark:
        return Response(status_code=204, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return HTMLResponse(text, headers=headers)
    return HTMLResponse(gzip.compress(text.encode(), 6), headers=headers | {"Content-Encoding": "gzip"})


def _times(live: LiveJob) -> str | None:
    """Where the time of the job's tasks went; once it has ended its summary knows. None where it is not known."""
    tasks, summary = live.progress.tasks, live.progress.job.summary or JobSummary()
    worked = sum(state.worked_seconds for state in tasks) or summary.select_seconds + summary.delete_seconds
    waited = sum(state.waited_seconds for state in tasks) or summary.waited_seconds
    if not worked and not waited:
        return None
    return f"{words.duration(worked)} in statements, {words.duration(waited)} waiting, all tasks together"
