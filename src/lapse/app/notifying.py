"""Tells people what needs them: each event once when it begins and once when it is over, whichever worker sees it.

What lasts is compared with the events in the catalog; what is new or over is written there with a notice for each
receiver, and every notice is sent until its receiver has accepted it. So nothing is lost when a worker or a receiver
is restarted, and a notice that was sent twice has the same id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import uuid4

from sqlalchemy import Connection

from lapse.app.health import PolicyHealth, policy_healths
from lapse.app.receivers import NotDelivered, Receiver
from lapse.app.status import TableStatus, table_statuses
from lapse.catalog import Catalog, events, holds, jobs, meta, policies, settings, workers
from lapse.errors import NotPermitted
from lapse.model.blocked import BlockCode
from lapse.model.hold import Hold
from lapse.model.notice import Event, EventKind, Notice
from lapse.runner.promise import Health
from lapse.runner.service import Service

LOOK_SECONDS = 5.0
LASTING = timedelta(minutes=10)
"""A lock or a closed gate, which workers wait for, is told once it has lasted this long."""
CLAIM_SECONDS = 60.0
"""Longer than any delivery takes; a worker that died meanwhile leaves its notice to the others after it."""
BACKOFF_SECONDS = 5.0
MAX_BACKOFF_SECONDS = 600.0
STOP_SECONDS = 10.0
MOST_NOTICES = 100
"""Sent in one round."""

log = logging.getLogger("lapse.worker")

_FAILED = frozenset({BlockCode.ERROR, BlockCode.TIMED_OUT, BlockCode.BAD_DATA})
_OF_THE_DATABASE = frozenset({BlockCode.CLOCK, BlockCode.NO_WORKER})
_WAITED_FOR = frozenset({BlockCode.LOCKED, BlockCode.GATE})


class Notifier(Service):
    name = "notifier"
    seconds = LOOK_SECONDS
    at_once = True

    def __init__(self, catalog: Catalog, receivers: Sequence[Receiver], database: str) -> None:
        super().__init__()
        self._catalog = catalog
        self._engine = catalog.engine
        self._receivers = {receiver.name: receiver for receiver in receivers}
        self._database = database
        self._failing: set[str] = set()
        self._is_told = False

    def close(self) -> None:
        """A receiver that does not let go is left behind: what it was told is sent again by the next worker."""
        self._closing.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def run_once(self) -> None:
        """Note what has begun and what is over, then send what is to be sent."""
        self._catalog.install()
        try:
            self._note()
            self._send()
        except NotPermitted as error:
            if not self._is_told:
                self._is_told = True
                log.warning("notifications: nothing can be told: %s", error)
            raise

    def _note(self) -> None:
        with self._catalog.reading() as connection:
            before = meta.read_fact(connection, meta.EVENTS_ROUND)
            lasting = {event.key: event for event in events.lasting_events(connection)}
            found = {event.key: event for event in self._look(connection)}
            if lasting.keys() == found.keys() and not events.untold(connection, self._receivers):
                return
        with self._catalog.writing() as connection:
            if not meta.replace_fact(connection, meta.EVENTS_ROUND, before, str(int(before or 0) + 1)):
                # Another worker was first; the next round looks again.
                return
            now, moment = self._engine.now(connection), self._engine.stopwatch(connection)
            for key in found.keys() - lasting.keys():
                events.begin_event(connection, found[key])
            for key in lasting.keys() - found.keys():
                events.clear_event(connection, lasting[key], now, send_at=moment)
            for event_id, receiver in events.untold(connection, self._receivers):
                events.add_notice(connection, event_id, receiver, moment)
            keep = settings.load_settings(connection).history_retention.approximate_seconds
            events.forget_events(connection, cleared_before=now - timedelta(seconds=keep))

    def _look(self, connection: Connection) -> list[Event]:
        """What lasts now."""
        now, current = self._engine.now(connection), settings.load_settings(connection)
        hold = current.clock_hold
        found = [] if hold is None else [_event(EventKind.CLOCK_ODD, None, BlockCode.CLOCK, hold, now)]
        statuses = table_statuses(
            connection,
            self._engine,
            now=now,
            settings=current,
            stored=policies.list_policies(connection),
            jobs=jobs.active_jobs(connection),
            workers=workers.list_workers(connection),
        )
        for health in policy_healths(statuses):
            found += _events_of(health, now)
        return [*found, *map(_event_of_hold, holds.holds_on(connection, now))]

    def _send(self) -> None:
        with self._catalog.reading() as connection:
            moment = self._engine.stopwatch(connection)
            due = events.due_notices(connection, list(self._receivers), moment, MOST_NOTICES)
        away: set[str] = set()
        for notice in due:
            if self._closing.is_set():
                return
            if notice.receiver not in away and not self._deliver(notice):
                away.add(notice.receiver)

    def _deliver(self, notice: Notice) -> bool:
        """False if the receiver could not be reached."""
        with self._catalog.writing() as connection:
            until = self._engine.stopwatch(connection) + timedelta(seconds=CLAIM_SECONDS)
            if not events.claim_notice(connection, notice, until):
                return True
        receiver = self._receivers[notice.receiver]
        try:
            receiver.deliver(notice, self._database, self._closing.is_set)
        except NotDelivered as error:
            self._postpone(notice, error)
            return not error.away
        with self._catalog.writing() as connection:
            events.finish_notice(connection, notice, self._engine.stopwatch(connection))
        if receiver.name in self._failing:
            self._failing.discard(receiver.name)
            log.info("notifications: the %s accepts them again", receiver.name)
        return True

    def _postpone(self, notice: Notice, error: NotDelivered) -> None:
        if notice.receiver not in self._failing:
            self._failing.add(notice.receiver)
            log.warning("notifications: %s; they are kept and sent again", error.message)
        pause = min(BACKOFF_SECONDS * 2.0 ** min(notice.attempts, 10), MAX_BACKOFF_SECONDS)
        with self._catalog.writing() as connection:
            until = self._engine.stopwatch(connection) + timedelta(seconds=pause)
            events.postpone_notice(connection, notice, error.message, until)


def _events_of(health: PolicyHealth, now: datetime) -> Iterable[Event]:
    """At most one of each kind for a policy, however many partitions its table has."""
    found: dict[str, Event] = {}
    for part in health.parts:
        kind = _kind(part, now)
        if kind is not None:
            promise = part.promise
            reason = promise.reason or f"{part.table} is {promise.health.words}"
            event = _event(kind, health, promise.code, reason, now)
            found.setdefault(event.key, event)
    return found.values()


def _kind(part: TableStatus, now: datetime) -> EventKind | None:
    promise = part.promise
    if promise.health is Health.LATE:
        return EventKind.TABLE_LATE
    if promise.health is not Health.BLOCKED or promise.code in _OF_THE_DATABASE:
        return None
    if promise.code is BlockCode.GUARD:
        return EventKind.FIRST_RUN_HELD
    if promise.code in _FAILED:
        return EventKind.JOB_FAILED
    if promise.code in _WAITED_FOR and (part.blocked_since is None or now - part.blocked_since < LASTING):
        return None
    return EventKind.TABLE_BLOCKED


def _event_of_hold(hold: Hold) -> Event:
    by = f", placed by {hold.placed_by}" if hold.placed_by else ""
    why = f": {hold.reason}" if hold.reason else ""
    return Event(
        id=f"{uuid4()}",
        kind=EventKind.HOLD,
        policy_id=None,
        table=str(hold.table),
        code=str(hold.id),
        reason=f"hold {hold.id} keeps {hold.rows}{by}{why}",
        began_at=hold.placed_at,
    )


def _event(kind: EventKind, health: PolicyHealth | None, code: BlockCode | None, reason: str, now: datetime) -> Event:
    policy_id = None if health is None else health.stored.id
    return Event(
        id=f"{uuid4()}",
        kind=kind,
        policy_id=policy_id,
        table=None if health is None else str(health.stored.table),
        code=None if code is None else str(code),
        reason=reason,
        began_at=now,
    )
