"""The key-value stores that this worker purges: a page, and the same for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lapse.console.api import PREFIX, json_response
from lapse.console.pages import Pages
from lapse.kv import StoreReport

Report = Callable[[], tuple[StoreReport, ...]]


def routes(pages: Pages, report: Report) -> list[Route]:
    def page(request: Request) -> Response:
        return pages.page(request, "stores", stores=report())

    def listed(request: Request) -> Response:
        return json_response([_record(each) for each in report()])

    return [Route("/stores", page), Route(f"{PREFIX}/stores", listed)]


def _record(report: StoreReport) -> dict[str, object]:
    """Times in ISO 8601."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(report).items()}
