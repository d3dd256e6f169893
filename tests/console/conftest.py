"""The console's application over a database with a past, and over one with hostile names."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.console import ConsoleOptions
from lapse.console.application import build
from tests.console import scene

with warnings.catch_warnings():
    # It would rather have the successor of httpx, which Playwright and others do not know yet.
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

TOKEN = "a-token-for-tests-0123456789"
LOCAL = "http://127.0.0.1:8321"
REMOTE = "https://ttl.example"
HOSTILE = """x"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}{}'; DROP TABLE lapse_job; --"""

Visit = Callable[..., TestClient]


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scene") / "app.db"
    database = scene.build(path)
    scene.other_workers(database)
    database.close()
    return path.rename(path.with_suffix(".saved"))


@pytest.fixture
def database(_template: Path) -> Iterator[Lapse]:
    """The scene of `scene.build`, restored for each test to where it was: elsewhere it would be a copy, and blocked."""
    path = _template.with_suffix(".db")
    for left in path.parent.glob("app.db*"):
        left.unlink()
    shutil.copy(_template, path)
    with Lapse(f"sqlite:///{path}") as opened:
        yield opened


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Lapse]:
    """One table whose name is an attack."""
    with Lapse(f"sqlite:///{tmp_path / 'hostile.db'}") as opened:
        name = '"' + HOSTILE.replace('"', '""') + '"'
        opened.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, at TEXT)")
        opened.execute(f"INSERT INTO {name} VALUES (1, '2020-01-01 00:00:00')")
        opened.execute(f"ALTER TABLE {name} TTL = at + INTERVAL 1 DAY")
        opened.run(confirm=True)
        yield opened


@pytest.fixture
def visit() -> Iterator[Visit]:
    """A browser-like client of a console over a database; cookies are kept, redirects are not followed."""
    opened: list[TestClient] = []

    def start(
        database: Lapse, *, token: str | None = None, allow_actions: bool = False, base_url: str | None = None
    ) -> TestClient:
        options = ConsoleOptions(
            host="127.0.0.1" if token is None else "0.0.0.0", port=8321, token=token, allow_actions=allow_actions
        )
        app = build(database, database.metrics(), options)
        address = base_url or (LOCAL if token is None else REMOTE)
        opened.append(TestClient(app, base_url=address, follow_redirects=False, raise_server_exceptions=False))
        return opened[-1]

    yield start
    for client in opened:
        client.close()


def policy_id(database: Lapse, table: str) -> int:
    return next(stored.id for stored in database.policies() if stored.table.name == table)
