"""The console of a worker for many databases: a page that lists them, and the console of each under its name."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from threading import Lock
from time import monotonic
from urllib.parse import quote, urlencode

from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lapse.app import Health
from lapse.app.databases import Fleet, Served
from lapse.console import probes
from lapse.console.api import PREFIX, json_response
from lapse.console.application import pages_of, static
from lapse.console.dashboard import Dashboard
from lapse.console.guard import AccessGuard
from lapse.console.options import ConsoleOptions
from lapse.console.pages import environment, refreshed, visitor_values
from lapse.console.session import Signer
from lapse.console.stores import Report
from lapse.errors import CatalogMissing, LapseError

ROOT = "/databases"
ROWS = 50
FRESH_SECONDS = 5.0
"""What the list says of a database is at most this old, and not asked again for every visitor."""
ANSWER_SECONDS = 2.0
ASKERS = 8
UNREACHABLE, UNKNOWN = "unreachable", "no answer yet"
WORST_FIRST = (UNREACHABLE, Health.BLOCKED.words, Health.LATE.words, UNKNOWN)
_TONES = {
    UNREACHABLE: "bad",
    Health.BLOCKED.words: "bad",
    Health.LATE.words: "bad",
    Health.PAUSED.words: "hold",
    UNKNOWN: "dim",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseRow:
    """A database as a line of the list; `state` is that of its worst policy."""

    name: str
    place: str
    state: str
    policies: int | None = None
    jobs: int | None = None

    @property
    def root(self) -> str:
        return f"{ROOT}/{quote(self.name)}"

    @property
    def tone(self) -> str:
        return _TONES.get(self.state, "ok")


class _List:
    """What is known of each database. One that does not answer keeps no visitor waiting."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pool = ThreadPoolExecutor(ASKERS, thread_name_prefix="lapse-list")
        self._answers: dict[str, tuple[float, Future[DatabaseRow]]] = {}
        self._known: dict[str, DatabaseRow] = {}
        self._lock = Lock()

    def rows(self) -> list[DatabaseRow]:
        served = self._fleet.served
        with self._lock:
            wait([self._ask(each) for each in served], ANSWER_SECONDS)
            found = [self._row(each) for each in served]
        rank = {state: number for number, state in enumerate(WORST_FIRST)}
        return sorted(found, key=lambda row: (rank.get(row.state, len(rank)), row.name))

    def _ask(self, served: Served) -> Future[DatabaseRow]:
        at, answer = self._answers.get(served.name, (0.0, None))
        if answer is None or (answer.done() and monotonic() - at > FRESH_SECONDS):
            answer = self._pool.submit(_look, served)
            self._answers[served.name] = monotonic(), answer
        return answer

    def _row(self, served: Served) -> DatabaseRow:
        _, answer = self._answers[served.name]
        if answer.done():
            self._known[served.name] = answer.result()
        return self._known.get(served.name, DatabaseRow(name=served.name, place=served.database.url, state=UNKNOWN))


def _look(served: Served) -> DatabaseRow:
    name, place = served.name, served.database.url
    if served.member.worker.is_unreachable:
        return DatabaseRow(name=name, place=place, state=UNREACHABLE)
    try:
        healths = served.database.health()
    except CatalogMissing:
        healths = []
    except LapseError:
        return DatabaseRow(name=name, place=place, state=UNREACHABLE)
    worst = max((each.health for each in healths), key=list(Health).index, default=None)
    state = "no policies" if worst is None else worst.words
    return DatabaseRow(
        name=name, place=place, state=state, policies=len(healths), jobs=sum(len(h.jobs) for h in healths)
    )


class _Each:
    """ASGI: the console of the database that an address names."""

    def __init__(self, fleet: Fleet, make: Callable[[Served], ASGIApp]) -> None:
        self._fleet = fleet
        self._make = make
        self._made: dict[str, tuple[Served, ASGIApp]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rest = str(scope["path"]).removeprefix(f"{ROOT}/")
        served = next((each for each in self._fleet.served if rest.startswith(f"{each.name}/")), None)
        if served is None:
            await PlainTextResponse("There is no such database.\n", 404)(scope, receive, send)
            return
        known = self._made.get(served.name)
        if known is None or known[0] is not served:
            known = self._made[served.name] = served, self._make(served)
        await known[1]({**scope, "root_path": f"{ROOT}/{served.name}"}, receive, send)


def build(
    fleet: Fleet,
    registry: CollectorRegistry,
    options: ConsoleOptions,
    *,
    is_working: Callable[[], bool],
    stores: Report | None = None,
) -> ASGIApp:
    signer, listed, templates = Signer(options.token), _List(fleet), environment()
    templates.globals |= {"options": options, "has_stores": False, "has_database": False, "root": ""}

    def console_of(served: Served) -> ASGIApp:
        dashboard = Dashboard(
            served.database, served.metrics, options, signer=signer, worker_id=served.member.worker.id,
            is_working=is_working, root=f"{ROOT}/{quote(served.name)}",
        )  # fmt: skip
        return pages_of(dashboard, stores)

    def why_not_ready() -> str | None:
        if not is_working():
            return probes.STOPPING
        reached = [each for each in fleet.served if not each.member.worker.is_unreachable]
        return None if reached else "no database is reachable"

    def page(request: Request) -> Response:
        wanted = request.query_params.get("q", "").strip()[:100]
        matching = [row for row in listed.rows() if wanted.lower() in row.name.lower() or wanted == row.state]
        live = request.headers.get("hx-request") == "true"
        text = templates.get_template("_databases.html" if live else "databases.html").render(
            page="databases", csrf=signer.form_token(request.state.visitor.session), **visitor_values(request),
            q=wanted, rows=matching[:ROWS],
            matching=len(matching), problems=fleet.problems, address=f"/?{urlencode({'q': wanted})}" if wanted else "/",
            place=f"{len(fleet.served)} databases",
        )  # fmt: skip
        return refreshed(request, text) if live else HTMLResponse(text, headers={"Vary": "HX-Request"})

    def records(request: Request) -> Response:
        return json_response(
            {"databases": [asdict(row) | {"api": f"{row.root}{PREFIX}"} for row in listed.rows()],
             "problems": fleet.problems}
        )  # fmt: skip

    app = Starlette(
        routes=[
            *probes.routes(lambda: generate_latest(registry), why_not_ready),
            Route("/", page),
            Route(f"{PREFIX}/databases", records),
            Mount(ROOT, app=_Each(fleet, console_of)),
            static(),
        ]
    )
    return AccessGuard(app, options, signer)
