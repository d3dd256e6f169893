"""One worker for many databases: who is looked at, who gets threads, what happens to those that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lapse.errors import CatalogTooNew, DatabaseUnavailable, InvalidValue, LapseError
from lapse.runner import multi as module
from lapse.runner.multi import CONNECTIONS, Member, MultiWorker
from lapse.runner.scheduler import Tick

PATIENCE_SECONDS = 10.0
"""A test that is going to fail waits no longer than this."""


class Log:
    """What workers were asked to do, in order; a test waits for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = Condition()

    def add(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def wait_for(self, *wanted: str, times: int = 1) -> None:
        with self._changed:
            seen = self._changed.wait_for(
                lambda: all(self.lines.count(each) >= times for each in wanted), PATIENCE_SECONDS
            )
        assert seen, f"{wanted} not in {self.lines}"


class FakeWorker:
    """A database without a database: it has `tasks`, each of which lasts until the test lets it end."""

    def __init__(self, name: str, log: Log, tasks: int = 0) -> None:
        self.name = name
        self.tasks = tasks
        self.is_unreachable = False
        self.others: tuple[Any, ...] = ()
        self.met: LapseError | None = None
        self.may_end = Event()
        self.stopped = Event()
        self._log = log

    def look(self, offer: Callable[[Tick], None]) -> float:
        self._log.add(f"look {self.name}")
        if self.met is not None:
            raise self.met
        if self.tasks:
            offer(cast(Tick, SimpleNamespace(jobs=("a job",))))
        return 0.01

    def beat(self) -> None:
        self._log.add(f"beat {self.name}")

    def seconds_until_due(self) -> float:
        return 0.01

    def may_work(self, number: int) -> bool:
        return not self.stopped.is_set()

    def work(self) -> bool:
        if not self.tasks:
            return False
        self.tasks -= 1
        self._log.add(f"begin {self.name}")
        while not (self.may_end.is_set() or self.stopped.is_set()):
            self.may_end.wait(0.01)
        self._log.add(f"end {self.name}")
        return True

    def give_way(self) -> None:
        self._log.add(f"give way {self.name}")
        self.may_end.set()

    def start_services(self) -> None:
        self._log.add(f"start {self.name}")

    def close_services(self) -> None:
        self._log.add(f"close {self.name}")

    def stop(self) -> None:
        self._log.add(f"stop {self.name}")
        self.stopped.set()

    def leave(self) -> None:
        self._log.add(f"leave {self.name}")


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIST_SECONDS", 0.01)


def member(worker: FakeWorker, log: Log, *, server: str = "s1", idle: int = 0) -> Member:
    return Member(
        name=worker.name,
        server=server,
        worker=cast(Any, worker),
        idle=lambda: idle,
        release=lambda: log.add(f"release {worker.name}"),
    )


@contextmanager
def serving(many: MultiWorker) -> Iterator[None]:
    thread = Thread(target=many.serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        many.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


# Connections


def test_threads_need_connections() -> None:
    MultiWorker([], threads=2, connections=12)
    with pytest.raises(InvalidValue, match="--connections = 11: 2 threads need 12"):
        MultiWorker([], threads=2, connections=11)


def test_more_threads_get_more_connections_unless_a_number_was_given() -> None:
    MultiWorker([], threads=CONNECTIONS)


# Listing


def test_every_database_is_looked_at_and_says_that_it_is(log: Log) -> None:
    members = [member(FakeWorker(name, log), log) for name in ("a", "b", "c")]
    with serving(MultiWorker([lambda: members], threads=1)):
        log.wait_for("look a", "look b", "look c", "beat a", "beat b", "beat c", times=2)
    for name in "abc":
        assert log.lines.count(f"leave {name}") == 1
        assert log.lines.index(f"stop {name}") < log.lines.index(f"leave {name}") < log.lines.index(f"release {name}")


def test_a_database_that_is_not_listed_any_more_is_left(log: Log) -> None:
    a, b = (member(FakeWorker(name, log), log) for name in "ab")
    listed: list[Member] = [a, b]
    with serving(MultiWorker([lambda: list(listed)], threads=1, on_gone=lambda gone: log.add(f"gone {gone.name}"))):
        log.wait_for("look a", "look b")
        listed.remove(b)
        log.wait_for("gone b")
        seen = log.lines.count("look b")
        log.wait_for("look a", times=log.lines.count("look a") + 3)
        assert log.lines.count("look b") == seen
    assert log.lines.index("stop b") < log.lines.index("leave b") < log.lines.index("gone b")
    assert "gone a" not in log.lines


def test_a_database_that_comes_later_is_found(log: Log) -> None:
    listed = [member(FakeWorker("a", log), log)]
    with serving(MultiWorker([lambda: list(listed)], threads=1)):
        log.wait_for("look a")
        listed.append(member(FakeWorker("b", log), log))
        log.wait_for("look b")


def test_another_database_of_the_same_name_replaces_the_first(log: Log) -> None:
    old, new = (member(FakeWorker("a", log), log, server=server) for server in ("s1", "s2"))
    listed = [old]
    gone: list[Member] = []
    with serving(MultiWorker([lambda: list(listed)], threads=1, on_gone=gone.append)):
        log.wait_for("look a")
        listed[0] = new
        log.wait_for("leave a")
        log.wait_for("look a", times=log.lines.count("look a") + 1)
    assert gone == [old]


def test_a_source_that_cannot_tell_keeps_the_databases_that_are_known(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    listed = [member(FakeWorker("a", log), log)]
    broken: list[LapseError] = []

    def source() -> Sequence[Member]:
        if broken:
            log.add("asked in vain")
            raise broken[0]
        return listed

    with serving(MultiWorker([source], threads=1)):
        log.wait_for("look a")
        broken.append(DatabaseUnavailable("no route to host"))
        log.wait_for("asked in vain", times=3)
        log.wait_for("look a", times=log.lines.count("look a") + 1)
        assert "stop a" not in log.lines
    # Said once, however often it is met.
    assert [record.message for record in caplog.records if "no route" in record.message] == [
        "databases cannot be listed, so those that are known stay: no route to host"
    ]


def test_sources_do_not_take_each_others_databases_away(log: Log) -> None:
    first = [member(FakeWorker("a", log), log)]
    with serving(MultiWorker([lambda: first, list], threads=1)):
        log.wait_for("look a", times=5)
        assert "stop a" not in log.lines


# Looking


def test_a_database_that_is_unreachable_has_no_heartbeat(log: Log) -> None:
    away, there = FakeWorker("away", log), FakeWorker("there", log)
    away.is_unreachable = True
    members = [member(away, log), member(there, log)]
    with serving(MultiWorker([lambda: members], threads=1)):
        log.wait_for("look away", "beat there", times=2)
    assert "beat away" not in log.lines


@pytest.mark.parametrize("error", [CatalogTooNew("written by a newer Lapse"), DatabaseUnavailable("gone")])
def test_a_database_that_cannot_be_looked_at_delays_no_other(log: Log, error: LapseError) -> None:
    broken = FakeWorker("broken", log)
    broken.met = error
    members = [member(broken, log), member(FakeWorker("fine", log), log)]
    with serving(MultiWorker([lambda: members], threads=1)):
        log.wait_for("look broken")
        log.wait_for("look fine", times=5)
    assert log.lines.count("look broken") == 1


def test_connections_of_databases_at_rest_are_closed_where_too_many_are_kept(log: Log) -> None:
    members = [member(FakeWorker(name, log), log, idle=idle) for name, idle in (("a", 60), ("b", 60))]
    with serving(MultiWorker([lambda: members], threads=1, connections=100)):
        log.wait_for("release a", "release b")


def test_connections_are_kept_where_there_is_room(log: Log) -> None:
    members = [member(FakeWorker(name, log), log, idle=2) for name in "ab"]
    with serving(MultiWorker([lambda: members], threads=1, connections=100)):
        log.wait_for("look a", "look b", times=3)
        assert "release a" not in log.lines and "release b" not in log.lines


# Working


def test_services_run_while_tasks_do_and_not_in_an_idle_database(log: Log) -> None:
    busy, idle = FakeWorker("busy", log, tasks=2), FakeWorker("idle", log)
    busy.may_end.set()
    members = [member(busy, log), member(idle, log)]
    with serving(MultiWorker([lambda: members], threads=2)):
        log.wait_for("end busy", times=2)
        log.wait_for("close busy")
        log.wait_for("look idle", times=2)
    assert log.lines.index("start busy") < log.lines.index("begin busy")
    assert "start idle" not in log.lines


def test_no_server_gets_more_than_half_of_the_threads_where_there_are_several(log: Log) -> None:
    slow, other = FakeWorker("slow", log, tasks=9), FakeWorker("other", log, tasks=1)
    members = [member(slow, log, server="s1"), member(other, log, server="s2")]
    with serving(MultiWorker([lambda: members], threads=4)):
        log.wait_for("begin slow", times=2)
        log.wait_for("begin other")
        log.wait_for("look slow", "look other", times=log.lines.count("look slow") + 3)
        assert log.lines.count("begin slow") == 2


def test_the_only_server_gets_all_of_them(log: Log) -> None:
    slow = FakeWorker("slow", log, tasks=9)
    members = [member(slow, log)]
    with serving(MultiWorker([lambda: members], threads=4)):
        log.wait_for("begin slow", times=4)


def test_a_database_that_waits_for_a_thread_gets_one_of_the_database_with_most(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 0.0)
    rich, poor = FakeWorker("rich", log, tasks=9), FakeWorker("poor", log)
    members = [member(rich, log), member(poor, log)]
    with serving(MultiWorker([lambda: members], threads=2)):
        log.wait_for("begin rich", times=2)
        poor.tasks = 1
        log.wait_for("give way rich", "begin poor")
    assert "give way poor" not in log.lines


def test_a_worker_that_fails_unexpectedly_is_looked_at_again(
    log: Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = FakeWorker("broken", log)
    monkeypatch.setattr(broken, "beat", lambda: 1 / 0)
    members = [member(broken, log)]
    with serving(MultiWorker([lambda: members], threads=1)):
        log.wait_for("look broken", times=2)
    assert "database broken met an error and is looked at again" in caplog.text


def test_notifications_are_told_in_threads_of_their_own(log: Log) -> None:
    worker = FakeWorker("a", log)

    def tell() -> None:
        log.add("tell")
        raise DatabaseUnavailable("the receiver is away")

    worker.others = (SimpleNamespace(name="notifier", seconds=0.01, run_once=tell),)
    members = [member(worker, log)]
    with serving(MultiWorker([lambda: members], threads=1)):
        log.wait_for("tell", "look a", times=3)
