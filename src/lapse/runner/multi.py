"""One worker for many databases: a bounded number of threads and connections, whatever the number of databases.

Three kinds of threads. Those that *look* ask each database in turn what is due. Those that *work* run tasks. Those that
*tell* send notifications. A database that does not answer holds the threads that ask it: so no server gets more than
half of them where there are several.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from threading import Condition, Event, Lock, Thread
from time import monotonic

from lapse.errors import CatalogTooNew, InvalidValue, LapseError
from lapse.runner.scheduler import Tick
from lapse.runner.worker import Worker

THREADS = 8
"""Tasks at the same time, over all databases."""
CONNECTIONS = 100
"""Most connections that are open at the same time, over all databases, where the threads do not need more."""
LOOKERS, TELLERS = 8, 2
LOOKS_PER_SECOND = 50.0
"""With more databases than this, changes of their policies are seen later. What falls due is not."""
LIST_SECONDS = 15.0
"""How often it is asked which databases there are."""
TURN_SECONDS = 5.0
"""A task gives its thread to a database that has waited for one for this long."""
FUTURE_SECONDS = 60.0
CONNECTIONS_PER_TASK = 3
CONNECTIONS_PER_LOOK = 2
"""Of one that looks or tells."""

DATABASE: ContextVar[str | None] = ContextVar("lapse_database", default=None)
"""The name of the database that this thread works for: log lines begin with it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A database of many.

    `server` is shared by those that are down together. `idle` counts the connections that are not in use, `release`
    closes them.
    """

    name: str
    server: str
    worker: Worker
    idle: Callable[[], int]
    release: Callable[[], None]


@dataclass(slots=True)
class _Turn:
    """When something is to be done for a database again, and whether a thread is at it."""

    at: float = 0.0
    is_taken: bool = False


class _Seat:
    """What the threads know of one member."""

    def __init__(self, member: Member, source: int) -> None:
        self.member = member
        self.source = source
        self.look, self.tell = _Turn(), _Turn()
        self.threads: set[int] = set()
        """Numbers of the threads that work for it, the smallest that are free."""
        self.waiting_since: float | None = None
        """It may have tasks to claim, and got no thread since."""
        self._services = Lock()
        self._at_work = 0

    @property
    def tasks(self) -> int:
        return len(self.threads)

    def take(self) -> int:
        number = next(each for each in count() if each not in self.threads)
        self.threads.add(number)
        return number

    @contextmanager
    def services(self) -> Iterator[None]:
        """Heartbeats and gauges run while tasks do, and not in an idle database."""
        with self._services:
            self._at_work += 1
            if self._at_work == 1:
                self.member.worker.start_services()
        try:
            yield
        finally:
            with self._services:
                self._at_work -= 1
                if not self._at_work:
                    self.member.worker.close_services()


Source = Callable[[], Sequence[Member]]
"""Which databases there are now: the same Member for the same database. Raises LapseError where it cannot tell."""


class MultiWorker:
    def __init__(
        self,
        sources: Sequence[Source],
        *,
        threads: int = THREADS,
        connections: int | None = None,
        on_gone: Callable[[Member], None] = lambda member: None,
    ) -> None:
        """`on_gone` is told of a database that is listed no more, when nothing works for it any more.

        Raises InvalidValue if so many threads need more connections.
        """
        self._sources = tuple(sources)
        self._threads = threads
        least = CONNECTIONS_PER_TASK * threads + CONNECTIONS_PER_LOOK * (1 + TELLERS)
        if connections is None:
            connections = max(CONNECTIONS, least)
        elif connections < least:
            raise InvalidValue("--connections", connections, f"{threads} threads need {least}")
        # Half of what is left may be in use by those that look; the other half is kept for the next look.
        self._lookers = min(LOOKERS, 1 + (connections - least) // 2 // CONNECTIONS_PER_LOOK)
        self._kept = connections - least - CONNECTIONS_PER_LOOK * (self._lookers - 1)
        self._on_gone = on_gone
        self._seats: dict[str, _Seat] = {}
        self._leaving: list[_Seat] = []
        self._told: dict[int, str] = {}
        self._stop = Event()
        self._changed = Condition()

    def stop(self) -> None:
        """Finish the batches at hand, give the tasks back and return from `serve`."""
        self._stop.set()
        with self._changed:
            seats = [*self._seats.values(), *self._leaving]
            self._changed.notify_all()
        for seat in seats:
            seat.member.worker.stop()

    def serve(self) -> None:
        """Keep running until `stop`; databases that are unreachable are waited for."""
        loops = [
            self._list_in_turn,
            *[self._look_in_turn] * self._lookers,
            *[self._tell_in_turn] * TELLERS,
            *[self._work_in_turn] * self._threads,
        ]
        threads = [Thread(target=loop, name=f"lapse-{number}") for number, loop in enumerate(loops)]
        for thread in threads:
            thread.start()
        try:
            while not self._stop.wait(1.0):
                self._make_way()
        finally:
            self.stop()
            for thread in threads:
                thread.join()
            for seat in [*self._seats.values(), *self._leaving]:
                self._dismiss(seat)

    # Listing

    def _list_in_turn(self) -> None:
        while not self._stop.is_set():
            for number, source in enumerate(self._sources):
                self._list(number, source)
            self._let_go()
            self._stop.wait(LIST_SECONDS)

    def _list(self, number: int, source: Source) -> None:
        try:
            self._take(number, source())
            self._told.pop(number, None)
        except LapseError as error:
            if self._told.get(number) != error.message:
                log.warning("databases cannot be listed, so those that are known stay: %s", error.message)
            self._told[number] = error.message
        except Exception:
            log.exception("databases cannot be listed, so those that are known stay")

    def _take(self, source: int, members: Sequence[Member]) -> None:
        """Work for these of a source from now on, and no more for others that it has listed."""
        wanted = {member.name: member for member in members}
        with self._changed:
            mine = {name: seat for name, seat in self._seats.items() if seat.source == source}
            gone = [seat for name, seat in mine.items() if wanted.get(name) is not seat.member]
            for seat in gone:
                del self._seats[seat.member.name]
            for name, member in wanted.items():
                if name not in self._seats and not self._stop.is_set():
                    self._seats[name] = _Seat(member, source)
            self._leaving += gone
            self._changed.notify_all()
        for seat in gone:
            log.info("database %s is not listed any more", seat.member.name)
            seat.member.worker.stop()

    def _let_go(self) -> None:
        """Of databases that are listed no more, when their last task has been given back."""
        with self._changed:
            idle = [seat for seat in self._leaving if not (seat.look.is_taken or seat.tell.is_taken or seat.tasks)]
            self._leaving = [seat for seat in self._leaving if seat not in idle]
        for seat in idle:
            self._dismiss(seat)
            self._on_gone(seat.member)

    def _dismiss(self, seat: _Seat) -> None:
        with suppress(LapseError):
            seat.member.worker.leave()
        seat.member.release()

    # Looking

    def _look_in_turn(self) -> None:
        self._serve_turns(attrgetter("look"), self._lookers, self._look)

    def _tell_in_turn(self) -> None:
        """Notifications: receivers may be slow, so no look waits for them."""
        self._serve_turns(attrgetter("tell"), TELLERS, self._tell)

    def _serve_turns(self, turn_of: Callable[[_Seat], _Turn], threads: int, serve: Callable[[_Seat], float]) -> None:
        while (seat := self._next_turn(turn_of, threads)) is not None:
            DATABASE.set(seat.member.name)
            turn, pause = turn_of(seat), 1.0
            try:
                pause = serve(seat)
            except Exception:
                log.exception("database %s met an error and is looked at again", seat.member.name)
            with self._changed:
                turn.is_taken, turn.at = False, monotonic() + pause
                self._changed.notify_all()

    def _next_turn(self, turn_of: Callable[[_Seat], _Turn], threads: int) -> _Seat | None:
        """The one that is due for longest; waits for it. None after `stop`."""
        with self._changed:
            while not self._stop.is_set():
                seats = list(self._seats.values())
                busy = Counter(seat.member.server for seat in seats if turn_of(seat).is_taken)
                share = self._share(threads)
                free = [seat for seat in seats if not turn_of(seat).is_taken and busy[seat.member.server] < share]
                seat = min(free, key=lambda each: turn_of(each).at, default=None)
                wait = None if seat is None else turn_of(seat).at - monotonic()
                if seat is not None and wait is not None and wait <= 0:
                    turn_of(seat).is_taken = True
                    return seat
                self._changed.wait(wait)
        return None

    def _tell(self, seat: _Seat) -> float:
        services = seat.member.worker.others
        if seat.member.worker.is_unreachable or not services:
            return LIST_SECONDS
        for service in services:
            try:
                service.run_once()
            except LapseError as error:
                log.debug("%s: %s", service.name, error.message)
        return min(service.seconds for service in services)

    def _look(self, seat: _Seat) -> float:
        """One look at a database; returns the seconds until the next."""
        worker = seat.member.worker
        try:
            pause = worker.look(lambda tick: self._offer(seat, tick))
            if worker.is_unreachable:
                return pause
            worker.beat()
        except CatalogTooNew as error:
            log.error("%s", error.message)
            return FUTURE_SECONDS
        except LapseError as error:
            log.debug("no heartbeat: %s", error.message)
            return 1.0
        finally:
            self._cool(seat)
        interval = max(pause, len(self._seats) / LOOKS_PER_SECOND)
        return min(interval, max(pause, worker.seconds_until_due()))

    def _cool(self, seat: _Seat) -> None:
        """Keep the connections of a database at rest for its next turn, unless too many are kept."""
        with self._changed:
            at_rest = [each for each in self._seats.values() if not each.tasks]
        if seat in at_rest and sum(each.member.idle() for each in at_rest) > self._kept:
            seat.member.release()

    # Working

    def _offer(self, seat: _Seat, tick: Tick) -> None:
        if tick.jobs:
            with self._changed:
                seat.waiting_since = seat.waiting_since or monotonic()
                self._changed.notify_all()

    def _work_in_turn(self) -> None:
        while (taken := self._next_work()) is not None:
            seat, number = taken
            DATABASE.set(seat.member.name)
            found = False
            try:
                found = self._work(seat, number)
            finally:
                with self._changed:
                    seat.threads.remove(number)
                    seat.waiting_since = monotonic() if found else None
                    self._changed.notify_all()
                self._cool(seat)

    def _work(self, seat: _Seat, number: int) -> bool:
        """Run tasks until there are none, or another database waits for a thread; True if there may be more."""
        worker = seat.member.worker
        with seat.services():
            while worker.may_work(number) and worker.work():
                if self._is_waited_for(seat):
                    return True
        return False

    def _is_waited_for(self, present: _Seat) -> bool:
        with self._changed:
            return any(seat.waiting_since and not seat.tasks for seat in self._seats.values() if seat is not present)

    def _next_work(self) -> tuple[_Seat, int] | None:
        """The one with fewest threads, and of these the one that has waited for longest; and the thread's number."""
        with self._changed:
            while not self._stop.is_set():
                seats = list(self._seats.values())
                busy, share = Counter[str](), self._share(self._threads)
                for seat in seats:
                    busy[seat.member.server] += seat.tasks
                free = [seat for seat in seats if seat.waiting_since and busy[seat.member.server] < share]
                if free:
                    chosen = min(free, key=lambda each: (each.tasks, each.waiting_since))
                    return chosen, chosen.take()
                self._changed.wait()
        return None

    def _make_way(self) -> None:
        """A database that has waited for a thread gets one of the database that has most of them."""
        with self._changed:
            seats = list(self._seats.values())
            since = monotonic() - TURN_SECONDS
            is_waited_for = any(not seat.tasks and seat.waiting_since and seat.waiting_since < since for seat in seats)
            richest = max(seats, key=lambda seat: seat.tasks, default=None)
            is_full = sum(seat.tasks for seat in seats) >= self._threads
        if is_waited_for and is_full and richest is not None:
            # In a thread: to interrupt a statement takes a connection to a server that may not answer.
            Thread(target=richest.member.worker.give_way, name="lapse-give-way", daemon=True).start()

    def _share(self, threads: int) -> int:
        """How many threads one server may have."""
        several = len({seat.member.server for seat in self._seats.values()}) > 1
        return max(1, threads // 2) if several else threads
