"""The web application put together: pages, API, metrics, probes, and one place where errors become answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from time import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from lapse.app import Lapse
from lapse.console import openapi, probes
from lapse.console import stores as store_pages
from lapse.console.api import PREFIX, Api, json_response
from lapse.console.archives import ArchivePages
from lapse.console.dashboard import Dashboard
from lapse.console.guard import AccessGuard, Proof, Visitor
from lapse.console.holds import HoldPages
from lapse.console.options import ConsoleOptions
from lapse.console.pages import Pages
from lapse.console.session import Signer
from lapse.console.stores import Report
from lapse.errors import (
    CatalogMissing,
    DatabaseUnavailable,
    LapseError,
    NotFound,
    Refused,
    Retryable,
    TableNotFound,
    UsageError,
)
from lapse.metrics import Metrics

STATIC = Path(__file__).parent / "static"

log = logging.getLogger(__name__)


class _Files(StaticFiles):
    """Revalidated each time, which costs next to nothing and never shows the style of another version."""

    def file_response(self, *arguments: object, **options: object) -> Response:
        response = super().file_response(*arguments, **options)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


def build(
    database: Lapse,
    metrics: Metrics,
    options: ConsoleOptions,
    *,
    worker_id: str | None = None,
    is_working: Callable[[], bool] = lambda: True,
    stores: Report | None = None,
) -> ASGIApp:
    """The console of one database, with everything around it."""
    signer = Signer(options.token)
    dashboard = Dashboard(database, metrics, options, signer=signer, worker_id=worker_id, is_working=is_working)

    def why_not_ready() -> str | None:
        try:
            database.clock()
        except LapseError:
            return "the database is unreachable"
        return None if dashboard.is_working() else probes.STOPPING

    served = [*probes.routes(dashboard.exposition, why_not_ready), static()]
    return AccessGuard(pages_of(dashboard, stores, served), options, signer)


def static() -> Mount:
    return Mount("/static", _Files(directory=STATIC))


def pages_of(dashboard: Dashboard, stores: Report | None, more: Sequence[BaseRoute] = ()) -> Starlette:
    """The pages and the API of one database."""
    pages, api = Pages(dashboard, has_stores=stores is not None), Api(dashboard)
    document = openapi.document(api.operations)
    problems = _Problems(dashboard, pages)

    def described(request: Request) -> Response:
        return json_response(document)

    return Starlette(
        routes=[
            *more,
            Route(f"{PREFIX}/openapi.json", described),
            *api.routes(),
            *HoldPages(dashboard, pages).routes(),
            *ArchivePages(dashboard, pages).routes(),
            *pages.routes(),
            *(store_pages.routes(pages, stores) if stores is not None else ()),
        ],
        exception_handlers={
            LapseError: problems.lapse,  # type: ignore[dict-item]
            HTTPException: problems.http,  # type: ignore[dict-item]
            Exception: problems.unexpected,
        },
    )


class _Problems:
    def __init__(self, dashboard: Dashboard, pages: Pages) -> None:
        self._dashboard = dashboard
        self._pages = pages

    def lapse(self, request: Request, error: LapseError) -> Response:
        hint = None if error.hint is None else self._dashboard.safe(error.hint)
        return self._answer(request, status_of(error), self._dashboard.safe(error.message), hint)

    def http(self, request: Request, error: HTTPException) -> Response:
        title = "There is no such page" if error.status_code == 404 else error.detail
        return self._answer(request, error.status_code, title, None)

    def unexpected(self, request: Request, error: Exception) -> Response:
        log.exception("the console met an error it does not know")
        return self._answer(request, 500, "Something went wrong", "the worker's log has the details")

    def _answer(self, request: Request, status: int, title: str, hint: str | None) -> Response:
        if request.url.path.removeprefix(request.scope.get("root_path", "")).startswith(PREFIX):
            return json_response({"error": title, "hint": hint}, status)
        if not hasattr(request.state, "visitor"):
            request.state.visitor = Visitor(
                proof=Proof.LOCAL, session=self._dashboard.signer.start(time()), is_new=False
            )
        return self._pages.problem(request, status, title, hint)


def status_of(error: LapseError) -> int:
    match error:
        case NotFound() | TableNotFound() | CatalogMissing():
            return 404
        case UsageError():
            return 400
        case DatabaseUnavailable() | Retryable():
            return 503
        case Refused():
            return 409
    return 500


__all__ = ["build", "pages_of", "static", "status_of"]
