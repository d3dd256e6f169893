"""The page of holds: what is kept, since when and by whom; operators place and release from here, after a question."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from lapse.console.actions import PROGRAM, ActionButton
from lapse.console.dashboard import Dashboard
from lapse.console.pages import Pages
from lapse.errors import InvalidValue, NotFound
from lapse.model.actor import acting
from lapse.model.hold import Hold

log = logging.getLogger(__name__)

FIELDS = ("table", "where", "until", "reason")
RELEASE = ActionButton(
    name="release",
    label="Release hold",
    question="Release the hold on {}?",
    effect="Its rows that have expired are deleted by the next job. Nothing brings them back.",
    done="The hold on {} is released.",
    is_grave=True,
)


class HoldPages:
    def __init__(self, dashboard: Dashboard, pages: Pages) -> None:
        self._dashboard = dashboard
        self._pages = pages

    def routes(self) -> list[Route]:
        return [
            Route("/holds", self.listed),
            Route("/holds/new", self.ask),
            Route("/holds", self.place, methods=["POST"]),
            Route("/holds/{hold_id:int}/release", self.ask_to_release),
            Route("/holds/{hold_id:int}/release", self.release, methods=["POST"]),
        ]

    def listed(self, request: Request) -> Response:
        database = self._dashboard.database
        placed, said = database.holds(), request.query_params.get("said")
        ended = [each for each in database.holds(ended=True) if each.id not in {hold.id for hold in placed}]
        words = {"placed": "The hold is in place: no job deletes one of its rows.", "released": "The hold is released."}
        return self._pages.page(
            request, "holds", holds=placed, ended=ended[:20], said=words.get(said or ""), now=database.clock()
        )

    def ask(self, request: Request) -> Response:
        self._pages.require_actions(request)
        given = {name: request.query_params.get(name, "").strip() for name in FIELDS}
        _until(given["until"])
        if not given["table"]:
            raise InvalidValue("table", "", "must be the name of a table")
        return self._pages.page(request, "hold", given=given)

    async def place(self, request: Request) -> Response:
        form = await self._pages.form(request)
        given = {name: form.get(name, [""])[0].strip() for name in FIELDS}
        who, until = request.state.visitor.who, _until(given["until"])
        log.info("console: %s asked to hold rows of %s", who, given["table"])
        with acting(user=who, program=PROGRAM):
            await run_in_threadpool(
                partial(
                    self._dashboard.database.hold,
                    given["table"],
                    given["where"] or None,
                    until=until,
                    reason=given["reason"] or None,
                )
            )
        return self._back("placed")

    def ask_to_release(self, request: Request) -> Response:
        hold = self._hold(request)
        back = f"{self._dashboard.root}/holds/{hold.id}"
        kept = f"Hold {hold.id} keeps {hold.rows}."
        return self._pages.ask(request, RELEASE, str(hold.table), back, kept, leave=f"{self._dashboard.root}/holds")

    async def release(self, request: Request) -> Response:
        await self._pages.form(request)
        who, number = request.state.visitor.who, request.path_params["hold_id"]
        log.info("console: %s asked to release hold %d", who, number)
        with acting(user=who, program=PROGRAM):
            await run_in_threadpool(self._dashboard.database.release, number)
        return self._back("released")

    def _back(self, said: str) -> Response:
        return RedirectResponse(f"{self._dashboard.root}/holds?{urlencode({'said': said})}", 303)

    def _hold(self, request: Request) -> Hold:
        number = request.path_params["hold_id"]
        for hold in self._dashboard.database.holds():
            if hold.id == number:
                return hold
        raise NotFound(f"there is no hold {number} that keeps rows")


def _until(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidValue("until", text, "must be a time with its zone, such as 2030-01-01T00:00:00Z")
    return moment
