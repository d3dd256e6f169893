"""What Lapse sees of a server's own work, and of other accounts' sessions."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from time import monotonic

import pymysql
import pytest

from lapse.engines.mysql import gauges
from lapse.runner.controller import Controller, Reading
from tests.backends.mariadb import MariadbServer, WorkerAccount
from tests.conformance.harness import Harness

PATIENCE_SECONDS = 10.0


@pytest.fixture
def worker(server: MariadbServer) -> Iterator[Harness]:
    with Harness.fresh(WorkerAccount(server)) as harness:
        yield harness


def _reading(h: Harness, name: str) -> Reading:
    (found,) = [reading for reading in h.db.gauges() if reading.name == name]
    return found


@pytest.mark.parametrize("name", ["dirty pages", "redo log"])
def test_what_deletes_fill_is_of_no_matter_while_no_application_is_there(
    h: Harness, server: MariadbServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for limit in ("DIRTY_SOFT", "DIRTY_STOP") if name == "dirty pages" else ("REDO_SOFT", "REDO_STOP"):
        monkeypatch.setattr(gauges, limit, 1e-12)
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    controller = Controller(h.db.catalog)
    controller.run_once()
    assert controller.stop_reason() is None
    assert controller.pause_after(0.1, 0.1) == (0.0, None)
    assert _reading(h, name).pressure > 1
    with server.connect() as application:
        asleep = Thread(target=application.query, args=("SELECT sleep(0.5)",))
        asleep.start()
        while controller.stop_reason() is None:
            assert asleep.is_alive(), "the application was not seen"
            controller.run_once()
        asleep.join()
    assert str(controller.stop_reason()).startswith(f"gate: {name}")
    assert h.run_one().counts.deleted == 1


def test_pages_that_the_server_writes_are_compared_with_what_it_may_write(h: Harness, server: MariadbServer) -> None:
    h.events()
    ((most, dirty, from_here),) = server.execute(
        "SELECT @@innodb_io_capacity_max, @@innodb_max_dirty_pages_pct, @@innodb_max_dirty_pages_pct_lwm"
    )
    controller = Controller(h.db.catalog)
    controller.run_once()
    try:
        server.execute("SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0, GLOBAL innodb_max_dirty_pages_pct = 0")
        until, number = monotonic() + PATIENCE_SECONDS, 0
        while not (seen := next(each for each in controller.readings if each.name == "pages written")).value:
            assert monotonic() < until, "nothing was written"
            number += 1
            h.insert((number, h.at()))
            controller.run_once()
        assert (seen.soft, seen.stop, seen.own) == (0.5 * float(str(most)), 4.0 * float(str(most)), True)
    finally:
        server.execute(f"SET GLOBAL innodb_max_dirty_pages_pct = {dirty}")
        server.execute(f"SET GLOBAL innodb_max_dirty_pages_pct_lwm = {from_here}")


def test_an_account_that_sees_its_own_sessions_alone_says_what_it_lacks(worker: Harness, server: MariadbServer) -> None:
    worker.events()
    with server.connect():
        seen = _reading(worker, "foreground")
    assert (seen.value, str(seen.note)[:26]) == (None, "GRANT PROCESS ON *.* TO `l")


def test_a_session_that_has_just_gone_hides_nothing(h: Harness, server: MariadbServer) -> None:
    """It was counted, and is not listed any more: no reason to ask for a privilege that the account has."""
    h.events()
    server.execute("CREATE USER IF NOT EXISTS passing@'%'")
    other = pymysql.connect(host="127.0.0.1", port=server.port, user="passing", ssl_disabled=True)
    with other, h.db.engine.connection() as connection:
        until = monotonic() + PATIENCE_SECONDS
        # On a busy machine the server lists a statement that has just been answered as one at work.
        while (gauge := gauges._foreground(connection, (), connected=10_000.0)).value and monotonic() < until:
            pass
    assert (gauge.value, gauge.note) == (0.0, None)
    server.execute("DROP USER passing@'%'")
