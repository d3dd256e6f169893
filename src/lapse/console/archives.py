"""The archive of a table: what each job has moved there, and where; operators restore a job's rows after a question."""

from __future__ import annotations

import logging
from contextvars import copy_context
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from lapse.app.archiving import ArchivedJob
from lapse.catalog.policies import StoredPolicy
from lapse.console.actions import PROGRAM, ActionButton
from lapse.console.dashboard import Dashboard
from lapse.console.pages import Pages
from lapse.errors import LapseError, NotFound, PolicyConflict
from lapse.model.actor import acting
from lapse.runner.restoring import Restored

log = logging.getLogger(__name__)

SHOWN = 50
"""Jobs, the newest first."""
RESTORE = ActionButton(
    name="restore",
    label="Restore rows",
    question="Put back what this job has archived of {}?",
    effect="Rows go back in small batches, at the pace of jobs. Those whose key is in the table stay in the archive. "
    "Restored rows are held for 7 days, or get a new expiry where the policy has a managed column.",
    done="The rows of {} are being restored.",
)


@dataclass(slots=True)
class _Restore:
    """One that was begun here, as far as it has come."""

    said: str
    is_over: bool = False
    is_wrong: bool = False


class ArchivePages:
    def __init__(self, dashboard: Dashboard, pages: Pages) -> None:
        self._dashboard = dashboard
        self._pages = pages
        self._begun: dict[int, _Restore] = {}
        self._lock = Lock()

    def routes(self) -> list[Route]:
        at = "/tables/{policy_id:int}/archive"
        return [
            Route(at, self.listed),
            Route(f"{at}/{{job_id:int}}/restore", self.ask),
            Route(f"{at}/{{job_id:int}}/restore", self.restore, methods=["POST"]),
        ]

    def listed(self, request: Request) -> Response:
        """Asked for by the table's page after it is there: archive tables are counted for it."""
        stored = self._dashboard.stored(request.path_params["policy_id"])
        database = self._dashboard.database
        found, problem = list[ArchivedJob](), None
        try:
            found = database.archive(stored)
        except LapseError as error:
            # A role that looks may have no right on an archive table.
            problem = error.message
        values: dict[str, Any] = {
            "found": sorted(found, key=lambda each: each.job, reverse=True)[:SHOWN],
            "more": max(0, len(found) - SHOWN),
            "rows": sum(each.rows for each in found),
            "bytes": sum(each.bytes or 0 for each in found),
            "problem": problem,
            "begun": [(job, each) for job, each in self._begun.items() if job in {one.job for one in found}],
        }
        return self._pages.page(request, "archive", stored=stored, now=database.clock(), **values)

    def ask(self, request: Request) -> Response:
        stored, each = self._job(request)
        kept = f"Job {each.job}: {each.rows:,} rows in {each.archive}."
        root = self._dashboard.root
        back = f"{root}/tables/{stored.id}/archive/{each.job}"
        return self._pages.ask(request, RESTORE, str(stored.table), back, kept, leave=f"{root}/tables/{stored.id}")

    async def restore(self, request: Request) -> Response:
        await self._pages.form(request)
        stored, job = self._dashboard.stored(request.path_params["policy_id"]), request.path_params["job_id"]
        who = request.state.visitor.who
        log.info("console: %s asked to restore what job %d has archived", who, job)
        with self._lock:
            if job in self._begun and not self._begun[job].is_over:
                raise PolicyConflict(f"the rows of job {job} are being restored")
            begun = self._begun[job] = _Restore(said="begins")
        context = copy_context()
        # It may take long: the page shows how far it is.
        Thread(target=lambda: context.run(self._run, job, begun, who), name=f"lapse-restore-{job}", daemon=True).start()
        return RedirectResponse(f"{self._dashboard.root}/tables/{stored.id}#archive", 303)

    def _run(self, job: int, begun: _Restore, who: str) -> None:
        def tell(done: Restored) -> None:
            waits = f", waits: {done.waiting}" if done.waiting else ""
            begun.said = f"{done.restored:,} of {done.rows:,} rows restored{waits}"

        try:
            with acting(user=who, program=PROGRAM):
                done = self._dashboard.database.undo(job, progress=tell)
            left = f"; {done.existing:,} left, as their key is in the table" if done.existing else ""
            refused = f"; {done.refused:,} refused: {done.reason}" if done.refused else ""
            begun.said, begun.is_wrong = f"{done.restored:,} rows restored{left}{refused}", bool(done.refused)
        except LapseError as error:
            begun.said, begun.is_wrong = error.message, True
        except Exception:
            log.exception("the rows of job %d were not restored", job)
            begun.said, begun.is_wrong = "an unexpected error, which the console's log has", True
        finally:
            begun.is_over = True

    def _job(self, request: Request) -> tuple[StoredPolicy, ArchivedJob]:
        stored, job = self._dashboard.stored(request.path_params["policy_id"]), request.path_params["job_id"]
        for each in self._dashboard.database.archive(stored):
            if each.job == job and each.rows:
                return stored, each
        raise NotFound(f"there are no rows of job {job} in the archive of {stored.table}")
