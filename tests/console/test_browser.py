"""The console in a real browser: every page, every button, live updates, a phone, the dark."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from lapse.app import Lapse
from lapse.console import ConsoleOptions
from lapse.console.application import build
from lapse.console.server import Server, bind
from lapse.model.job import JobStatus
from lapse.runner.metering import Meter
from tests.console.conftest import HOSTILE, TOKEN, policy_id
from tests.tools import required

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
TABLET = {"width": 820, "height": 900}
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
IMAGES = os.environ.get("LAPSE_SCREENSHOTS")
ANYWHERE = """pairs => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode())
    for (const [here, there] of pairs) walker.currentNode.data = walker.currentNode.data.replaceAll(here, there);
}"""
"""Pictures in the documents say nothing of the machine that they were taken on."""
"""A folder to leave pictures in, for the documentation."""
PATIENCE_MS = 30_000
"""Until something is on the page: what comes sooner is seen sooner, and a busy machine takes its time."""
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=required("chromium"), args=FLAGS)
        yield opened
        opened.close()


class Site:
    """A console with its address, and with a worker if `work` was called."""

    def __init__(self, database: Lapse, **options: Any) -> None:
        self.database = database
        self.metrics = database.metrics()
        self._worker = database.worker(Meter(self.metrics))
        self._thread = Thread(target=self._worker.serve, daemon=True)
        bound, self.options = bind(ConsoleOptions(**options))
        self._server = Server(build(database, self.metrics, self.options, worker_id=self._worker.id), bound)
        self._server.__enter__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.options.port}"

    def work(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._worker.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._server.__exit__(None, None, None)


@pytest.fixture
def site(database: Lapse) -> Iterator[Site]:
    opened = Site(database, allow_actions=True)
    yield opened
    opened.close()


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    """A page that fails its test when the browser finds anything to complain about. It is closed before the site is,
    which it would go on asking for news."""
    yield from _page(browser)


def _page(browser: Browser, **options: Any) -> Iterator[Page]:
    context = browser.new_context(viewport=options.pop("viewport", DESK), **options)
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        # SQLite may be busy for a moment, which the page says and gets over.
        if message.type in ("error", "warning") and "503" not in message.text:
            complaints.append(message.text)

    opened.on("console", hear)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("requestfailed", lambda request: complaints.extend(_failure(request)))
    yield opened
    context.close()
    assert complaints == []


def _failure(request: Request) -> list[str]:
    """A page that is left in the middle of a request is no failure."""
    return [] if "ABORTED" in str(request.failure) else [f"{request.url}: {request.failure}"]


def _addresses(database: Lapse) -> dict[str, str]:
    job = database.history(limit=1)[0].id
    table = policy_id(database, "events")
    return {
        "overview": "/", "jobs": "/jobs", "fleet": "/fleet", "settings": "/settings", "ledger": "/ledger",
        "table": f"/tables/{table}", "preview": f"/tables/{table}/preview", "job": f"/jobs/{job}",
        "confirm": f"/tables/{table}/pause",
    }  # fmt: skip


@pytest.mark.parametrize("viewport", [DESK, TABLET, PHONE], ids=["desk", "tablet", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits(browser: Browser, site: Site, viewport: dict[str, int], scheme: str) -> None:
    for page in _page(browser, viewport=viewport, color_scheme=scheme):
        for name, address in _addresses(site.database).items():
            page.goto(site.url + address)
            expect(page.locator("main")).to_be_visible()
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= viewport["width"], (name, wide)
            dim = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (dim == "rgb(17, 20, 23)") is (scheme == "dark")


def test_text_has_contrast(browser: Browser, site: Site) -> None:
    """WCAG AA for every piece of text, in both palettes."""
    for scheme in ("light", "dark"):
        for page in _page(browser, color_scheme=scheme):
            for address in _addresses(site.database).values():
                page.goto(site.url + address)
                poor = page.evaluate((Path(__file__).parent / "contrast.js").read_text(encoding="utf-8"))
                assert poor == [], (scheme, address)


def test_live_parts_follow_the_job(page: Page, site: Site) -> None:
    page.goto(site.url)
    expect(page.locator(".job-card")).to_have_count(0)
    site.work()
    card = page.locator(".job-card")
    expect(card).to_contain_text("Running")
    expect(card).to_contain_text("rate limit of 200 rows/s")
    before = card.locator("dd").first.inner_text()
    expect(card.locator("dd").first).not_to_have_text(before)
    expect(page.locator("#announcer")).to_contain_text("1 active job")
    assert float(card.locator("progress").get_attribute("value") or 0) > 0
    _picture(page, "console-overview", site)
    card.get_by_role("link").click()
    expect(page.locator("h1")).to_contain_text("Job")
    expect(page.locator("tbody")).to_contain_text("rate limit")
    _picture(page, "console-job", site)
    # Stopped by its reader, the page stands still.
    page.get_by_role("button", name="Live").click()
    still = page.locator("#live").inner_text()
    page.wait_for_timeout(2500)
    assert page.locator("#live").inner_text() == still
    page.get_by_role("button", name="Paused").click()
    expect(page.locator("#live")).not_to_have_text(still)


def test_focus_survives_an_update(page: Page, site: Site) -> None:
    page.goto(site.url)
    link = page.locator(f"#policy-{policy_id(site.database, 'orders')}")
    link.focus()
    with page.expect_response(lambda response: response.request.headers.get("hx-request") == "true"):
        pass
    page.wait_for_timeout(200)
    expect(link).to_be_focused()


def test_every_button_of_a_table(page: Page, site: Site) -> None:
    database = site.database
    key = policy_id(database, "sessions")
    page.goto(f"{site.url}/tables/{key}")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(dialog).to_contain_text("Pause the TTL of sessions?")
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_focused()
    assert not database.policy("sessions").policy.pause
    page.keyboard.press("Space")
    dialog.get_by_role("button", name="Not now").click()
    expect(dialog).not_to_be_visible()
    _confirm(page, "Pause")
    expect(page.get_by_role("status").first).to_have_text("sessions is paused.")
    assert database.policy("sessions").policy.pause
    _confirm(page, "Resume")
    expect(page.get_by_role("status").first).to_have_text("sessions goes on.")
    assert not database.policy("sessions").policy.pause
    _confirm(page, "Run now")
    expect(page.locator("#live")).to_contain_text("due now")
    page.get_by_role("button", name="Count expired rows").click()
    expect(page.locator("#preview")).to_contain_text("of 41,200 rows would go")
    page.get_by_text("CockroachDB").click()
    page.get_by_text("As a table").first.click()
    expect(page.locator(".chart canvas")).to_have_count(2)


def test_every_button_of_a_job(page: Page, site: Site) -> None:
    site.work()
    page.goto(site.url)
    page.locator(".job-card").get_by_role("link").click()
    _confirm(page, "Pause job")
    expect(page.locator("#live")).to_contain_text("paused by request")
    _confirm(page, "Resume job")
    expect(page.locator(".job-card")).to_contain_text("Running")
    page.goto(f"{site.url}/tables/{policy_id(site.database, 'events')}")
    _picture(page, "console-table", site)
    _confirm(page, "Cancel job")
    expect(page.locator(".job-card")).to_have_count(0)
    assert site.database.history("events", limit=1)[0].status is JobStatus.CANCELLED


def _confirm(page: Page, label: str) -> None:
    page.locator("main").get_by_role("button", name=label, exact=True).click()
    with page.expect_navigation():
        page.get_by_role("dialog").get_by_role("button", name=label, exact=True).click()


def test_it_works_without_javascript(browser: Browser, site: Site) -> None:
    for page in _page(browser, java_script_enabled=False):
        page.goto(f"{site.url}/tables/{policy_id(site.database, 'orders')}")
        page.get_by_role("button", name="Pause", exact=True).click()
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(page.get_by_role("status").first).to_have_text("orders is paused.")


def test_the_keyboard_reaches_everything(page: Page, site: Site) -> None:
    page.goto(site.url)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("searchbox")).to_be_focused()
    for role in ("banner", "main", "contentinfo", "navigation"):
        expect(page.get_by_role(role).first).to_be_visible()


def test_a_hostile_name_stays_a_name(browser: Browser, hostile: Lapse) -> None:
    site = Site(hostile, allow_actions=True)
    try:
        for page in _page(browser):
            page.on("dialog", lambda dialog: pytest.fail("the name was run"))
            for address in ("/", "/jobs", f"/tables/{hostile.policies()[0].id}", "/jobs/1"):
                page.goto(site.url + address)
                expect(page.locator("main")).to_contain_text(HOSTILE)
            page.goto(f"{site.url}/tables/{hostile.policies()[0].id}")
            page.get_by_role("button", name="Run now").click()
            expect(page.get_by_role("dialog")).to_contain_text(HOSTILE)
    finally:
        site.close()


def test_the_token_opens_the_door_once(browser: Browser, database: Lapse) -> None:
    site = Site(database, host="0.0.0.0", token=TOKEN)
    try:
        for page in _page(browser):
            page.goto(f"{site.url}/fleet?token={TOKEN}")
            assert page.url == f"{site.url}/fleet"
            expect(page.locator("h1")).to_have_text("Fleet")
            page.goto(f"{site.url}/tables/{policy_id(database, 'events')}")
            assert page.locator("[id^=action-]").count() == 0
            assert "read-only" in page.locator("footer").inner_text()
    finally:
        site.close()


def test_a_tablet(browser: Browser, site: Site) -> None:
    for page in _page(browser, viewport=TABLET):
        page.goto(site.url)
        expect(page.locator("tbody tr").first).to_be_visible()
        _picture(page, "console-tablet", site)


def test_a_phone_in_the_dark(browser: Browser, site: Site) -> None:
    for page in _page(browser, viewport=PHONE, color_scheme="dark", has_touch=True, is_mobile=True):
        page.goto(site.url)
        expect(page.locator("tbody tr").first).to_be_visible()
        _picture(page, "console-phone", site)
        page.get_by_role("link", name="events").tap()
        expect(page.locator("h1")).to_have_text("events")
        box = page.get_by_role("button", name="Run now").bounding_box()
        assert box is not None
        assert box["height"] >= 44


def _picture(page: Page, name: str, site: Site) -> None:
    if IMAGES:
        page.wait_for_timeout(500)
        page.evaluate(ANYWHERE, [[site.database.url, "sqlite:///app.db"], [socket.gethostname(), "db-worker-1"]])
        page.screenshot(path=str(Path(IMAGES) / f"{name}.png"))


def test_pictures_in_the_documentation_are_small() -> None:
    images = list((Path(__file__).parents[2] / "docs" / "images").glob("*.png"))
    assert len(images) >= 3
    assert all(path.stat().st_size < 200_000 for path in images)
