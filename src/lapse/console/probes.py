"""What machines ask of a worker: whether it lives, whether it is ready, and what it has counted."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lapse.console.guard import AccessGuard
from lapse.console.options import ConsoleOptions
from lapse.console.session import Signer

STOPPING = "stopping"


def routes(exposition: Callable[[], bytes], why_not_ready: Callable[[], str | None]) -> list[Route]:
    """`/healthz`, `/readyz` and `/metrics`; `why_not_ready` gives None for a worker that is ready."""

    def healthz(request: Request) -> Response:
        """The process answers: that is all."""
        return PlainTextResponse("ok\n")

    def readyz(request: Request) -> Response:
        reason = why_not_ready()
        return PlainTextResponse("ready\n") if reason is None else PlainTextResponse(f"{reason}\n", 503)

    def metrics(request: Request) -> Response:
        return Response(exposition(), media_type=CONTENT_TYPE_LATEST)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]


def build(registry: CollectorRegistry, options: ConsoleOptions, *, is_working: Callable[[], bool]) -> ASGIApp:
    """The web application of a worker without a database, which has no console."""
    served = routes(lambda: generate_latest(registry), lambda: None if is_working() else STOPPING)
    return AccessGuard(Starlette(routes=served), options, Signer(options.token))
