"""How hard to work: flat out on an idle server, a small share of the time under foreground load, not at all when the
server is overloaded.

Effort goes up slowly and down at once. Every reason is kept, for the status and the metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from threading import Event, Lock
from time import monotonic

from sqlalchemy import Connection

from lapse.catalog import Catalog, settings
from lapse.engines.base import Gauge
from lapse.errors import Blocked, LapseError
from lapse.model.blocked import BlockCode
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner.service import Service

WHISPER_DUTY, FAST_DUTY = 0.05, 0.8
"""Share of the time for which the server is kept busy while others are at work; that of `gentle` is the engine's."""
URGENT_DUTY = 0.8
"""The share when a promise is in danger; a stop gate still stops."""
UNSTRAINED = 0.95
"""Statements are short until effort has come back to this."""
FREE_BELOW = 0.7
"""Up to this share of a soft limit there is room, and Lapse works flat out."""
SMOOTHING = 0.3
"""Weight of the newest reading of a gauge that jumps about."""
RECOVERY_PER_SECOND = 0.1
"""How fast effort comes back."""
RESTRAINED_AT_ONCE, RELEASED_AT_ONCE = 2.0, 1.1
"""By which factor the share shrinks at most, and grows, between two looks at what Lapse's own deletes raise."""
LEAST_RESTRAINT = 0.1
"""Of the share that the mode allows, how much is left however much log the server writes."""
SMALLEST_POSITIVE = 1e-12
GATE_NAME, GATE_FROM = "gate_sql", ("$LAPSE_GATE_SQL",)
FIRST_READING_SECONDS = 5.0
FIRST_LOOKS, FIRST_LOOK_SECONDS = 3, 0.004
SHORTEST_PAUSE_SECONDS = 0.0005
YIELDING_SECONDS = 1.0
"""Between two looks at the gauges under foreground load."""
STALE_SECONDS = 1.0
"""A task that begins after nothing was at work for this long waits for a new reading."""
CURRENT_SECONDS = 2 * YIELDING_SECONDS
"""A reading no older than this is shown as the present one."""
GROW_AFTER_SECONDS = 2.0
"""A further task is tried after this long without strain."""
HEAD_START = 2
"""Tasks at the start, where the first reading shows that there is room."""
WORTHWHILE = 1.15
"""A further task stays only if the rate grew by this factor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A gauge as judged: `pressure` is 1 at its soft limit. `stops` says that nothing may be deleted."""

    name: str
    value: float | None
    soft: float
    stop: float
    unit: str
    pressure: float
    stops: bool
    note: str | None = None
    settings: tuple[str, ...] = ()
    application: bool = False
    own: bool = False
    table: TableName | None = None
    counts: bool = True
    """Does Lapse go by it? Not by what its own deletes raise while no application is at work."""

    @property
    def title(self) -> str:
        return f"{self.name} of {self.table}" if self.table else self.name

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.title}: not available ({self.note})"
        limit = self.stop if self.stops else self.soft
        return f"{self.title} {self.value:.3g}{self.unit} of {limit:.3g}{self.unit}"

    def holds_for(self, table: TableName | None) -> bool:
        return self.table is None or self.table == table


class Controller(Service):
    """Reads the gauges every so often; tasks ask it how long to pause, workers how many tasks to run."""

    name = "controller"
    seconds = 0.25
    at_once = True

    def __init__(self, catalog: Catalog, gate_sql: str | None = None) -> None:
        super().__init__()
        self._catalog = catalog
        self._gate_sql = gate_sql
        self._closed_at: dict[TableName | None, float] = {}
        self._lock = Lock()
        self._smoothed: dict[str, float] = {}
        self._counters: dict[str, tuple[float, float]] = {}
        self._duty = 1.0
        self._restraint = 1.0
        self._duty_at = monotonic()
        self._mode = "gentle"
        self.readings: tuple[Reading, ...] = ()
        self._growth = _Growth()
        self._known = Event()
        self._known.set()
        self._tables_at_work: list[TableName | None] = []
        self._read_at = float("-inf")

    @contextmanager
    def at_work(self, table: TableName | None = None) -> Iterator[None]:
        """While a task runs. Without any the gauges are not read: no task would use them."""
        with self._lock:
            self._tables_at_work.append(table)
            is_stale = monotonic() - self._read_at > STALE_SECONDS
            if is_stale and self._thread is not None:
                self._known.clear()
        if is_stale:
            self.wake()
        try:
            yield
        finally:
            with self._lock:
                self._tables_at_work.remove(table)

    def start(self) -> None:
        self._known.clear()
        super().start()

    def pause(self) -> float:
        """An application that arrives is noticed soon; beside one that is known, looks cost it more than they tell, but
        for what Lapse fills and comes near the limit at which it has to stop."""
        with self._lock:
            filling = _worst(each for each in self.readings if each.own and each.counts and isfinite(each.stop))
        return YIELDING_SECONDS if self.yields() and filling <= FREE_BELOW else self.seconds

    def run_once(self) -> None:
        if self._known.is_set() and self._thread is not None and not self._tables_at_work:
            return
        try:
            with self._catalog.reading() as connection:
                current = settings.load_settings(connection)
                # A single look at what jumps about may find a busy server idle; the first judgement needs several.
                for _ in range(0 if self._known.is_set() else FIRST_LOOKS - 1):
                    self._glance(connection, current)
                    self._closing.wait(FIRST_LOOK_SECONDS)
                with self._lock:
                    tables = {table for table in self._tables_at_work if table is not None}
                readings = self._look(connection, current, tables)
            with self._lock:
                self._mode = current.mode
                self.readings = readings
                self._read_at = monotonic()
                now = monotonic()
                closed = {reading.table for reading in readings if reading.stops}
                self._closed_at = {table: self._closed_at.get(table, now) for table in closed}
                self._restrain()
                self._move_duty()
                self._growth.observe(strained=self._pressure() > FREE_BELOW)
        finally:
            # A database that is unreachable now is met again by the tasks that need it.
            self._known.set()

    def current_readings(
        self, connection: Connection, current: Settings, tables: Collection[TableName] = ()
    ) -> tuple[Reading, ...]:
        """Those that tasks go by, where some are at work; otherwise the gauges are read now, with those of `tables`."""
        with self._lock:
            if monotonic() - self._read_at <= CURRENT_SECONDS:
                return self.readings
        return self._look(connection, current, tables)

    def _glance(self, connection: Connection, current: Settings) -> None:
        for gauge in self._catalog.engine.glance(connection, current):
            self._judge(gauge)

    def _look(
        self, connection: Connection, current: Settings, tables: Collection[TableName] = ()
    ) -> tuple[Reading, ...]:
        engine = self._catalog.engine
        gauges = [*engine.gauges(connection, current)]
        if tables:
            gauges += engine.table_gauges(connection, current, tables)
        if self._gate_sql:
            gauges.append(self._custom(connection, self._gate_sql))
        return _weighed([self._judge(gauge) for gauge in gauges])

    def stop_reason(self, table: TableName | None = None) -> str | None:
        """Why nothing may be deleted now from a table. Waits for the first reading of the gauges."""
        self._known.wait(FIRST_READING_SECONDS)
        with self._lock:
            stopping = next((each for each in self.readings if each.stops and each.holds_for(table)), None)
        return f"gate: {stopping}" if stopping else None

    def shut_gate(self, patience: float, table: TableName | None = None) -> Blocked | None:
        """The gate of a table that has been closed for longer than `patience` seconds, and what opens it."""
        with self._lock:
            closed = {each for each, since in self._closed_at.items() if monotonic() - since > patience}
            candidates = [each for each in self.readings if each.stops and each.holds_for(table)]
            shut = next((each for each in candidates if each.table in closed), None)
        if shut is None:
            return None
        said = f" ({shut.note})" if shut.note else ""
        limit = f", the limit is {shut.stop:.3g}{shut.unit}" if shut.stop > SMALLEST_POSITIVE else ""
        text = f"the gate {shut.title} stays closed: {shut.value:.3g}{shut.unit}{said}{limit}"
        hint = f"its job goes on when it opens; see {' and '.join(shut.settings)}" if shut.settings else None
        return Blocked(BlockCode.GATE, text, hint=hint)

    def pause_after(
        self, seconds: float, busy: float, *, urgent: bool = False, table: TableName | None = None
    ) -> tuple[float, str | None]:
        """How long to rest after a batch that took `seconds`, of which the server was `busy`, and why.

        The server rests during the remainder, too: on its way to us and back, and while we count.
        """
        share, reason = self.share(urgent=urgent, table=table)
        pause = busy / share - seconds
        return (0.0, None) if pause < SHORTEST_PAUSE_SECONDS else (pause, reason)

    def share(self, *, urgent: bool = False, table: TableName | None = None) -> tuple[float, str]:
        """For how much of the time the server may be kept busy now, and why no longer."""
        with self._lock:
            relevant = [each for each in self.readings if each.counts and each.holds_for(table)]
            worst = max(relevant, key=lambda reading: reading.pressure, default=None)
            duty = min(self._duty, self._share_at(_worst(each for each in relevant if each.table)))
            duty = max(duty, URGENT_DUTY) if urgent else duty
        return duty, f"yielding: {worst}" if worst else f"mode {self._mode}"

    def batch_seconds(self) -> float:
        """How long the statement of a batch may take now.

        What queues behind it waits as long as it lasts: short statements with short rests are felt less than long ones
        with long rests.
        """
        features = self._catalog.engine.features
        return features.short_seconds if self.yields() else features.target_seconds

    def yields(self) -> bool:
        """Is an application at work, for which Lapse holds back?"""
        with self._lock:
            return self._duty < UNSTRAINED and self._mode != "fast"

    def allowed_tasks(self, wanted: int) -> int:
        """How many tasks this process may run at the same time: one, and more as they prove to help.

        Waits for the first reading of the gauges.
        """
        self._known.wait(FIRST_READING_SECONDS)
        with self._lock:
            return max(1, min(wanted, self._growth.tasks))

    def count(self, rows: int) -> None:
        with self._lock:
            self._growth.rows += rows

    def _custom(self, connection: Connection, sql: str) -> Gauge:
        engine = self._catalog.engine
        try:
            with engine.errors():
                value = engine.scalar(connection, sql)
        except (LapseError, ValueError) as error:
            # A gate that cannot be read is closed.
            return Gauge(
                name=GATE_NAME, value=1.0, soft=1.0, stop=0.0, note=str(error).splitlines()[0], settings=GATE_FROM
            )
        return Gauge(name=GATE_NAME, value=value, soft=1.0, stop=SMALLEST_POSITIVE, settings=GATE_FROM)

    def _judge(self, gauge: Gauge) -> Reading:
        value = gauge.value
        if value is not None and gauge.counter:
            value = self._rate(gauge.name, value)
        if value is not None and gauge.averaged:
            value = SMOOTHING * value + (1 - SMOOTHING) * self._smoothed.get(gauge.name, value)
            self._smoothed[gauge.name] = value
        pressure = 0.0 if value is None else value / gauge.soft
        return Reading(
            name=gauge.name,
            value=value,
            soft=gauge.soft,
            stop=gauge.stop,
            unit=gauge.unit,
            pressure=pressure,
            stops=value is not None and value >= gauge.stop,
            note=gauge.grant or gauge.note,
            settings=gauge.settings,
            application=gauge.application,
            own=gauge.own,
            table=gauge.table,
        )

    def _rate(self, name: str, value: float) -> float:
        now = monotonic()
        before, at = self._counters.get(name, (value, now))
        self._counters[name] = (value, now)
        return max(0.0, (value - before) / (now - at)) if now > at else 0.0

    def _pressure(self) -> float:
        return _worst(reading for reading in self.readings if reading.counts and reading.table is None)

    def _least_duty(self) -> float:
        gentle = self._catalog.engine.features.gentle_share
        return {"whisper": WHISPER_DUTY, "fast": FAST_DUTY}.get(self._mode, gentle)

    def _share_at(self, pressure: float) -> float:
        """All of the time while there is room, that of the mode at a soft limit."""
        least = self._least_duty()
        room = min(1.0, max(0.0, (1 - pressure) / (1 - FREE_BELOW)))
        return least + (1.0 - least) * room if self._mode != "whisper" else least

    def _restrain(self) -> None:
        """Beside an application, less than the mode allows, until what Lapse itself raises is below its soft limit.

        How much log a second of deleting makes depends on the table, so the share is found by trying.
        """
        over = _worst(reading for reading in self.readings if reading.own and reading.counts)
        is_seen = _worst(reading for reading in self.readings if reading.application) > FREE_BELOW
        if over <= 1.0 or self._mode == "fast" or not is_seen:
            self._restraint = min(1.0, self._restraint * RELEASED_AT_ONCE)
        else:
            self._restraint = max(LEAST_RESTRAINT, self._restraint / min(over, RESTRAINED_AT_ONCE))

    def _move_duty(self) -> None:
        target = self._share_at(self._pressure()) * self._restraint
        now = monotonic()
        if target < self._duty:
            self._duty = target
        else:
            self._duty = min(target, self._duty + RECOVERY_PER_SECOND * (now - self._duty_at))
        self._duty_at = now


def _weighed(readings: list[Reading]) -> tuple[Reading, ...]:
    """What Lapse's own deletes raise counts beside an application, and where it cannot be told whether one is there."""
    others = [reading for reading in readings if reading.application]
    is_alone = bool(others) and all(each.value is not None and each.pressure <= FREE_BELOW for each in others)
    return tuple(
        replace(reading, counts=False, stops=False) if reading.own and is_alone else reading for reading in readings
    )


def _worst(readings: Iterable[Reading]) -> float:
    return max((reading.pressure for reading in readings), default=0.0)


class _Growth:
    """One more task at a time, kept only while it pays."""

    def __init__(self) -> None:
        self.tasks = 1
        self.rows = 0
        self._since = monotonic()
        self._rate = 0.0
        self._settled = False
        self._is_new = True

    def observe(self, *, strained: bool) -> None:
        now = monotonic()
        if self._is_new:
            self.tasks, self._is_new = HEAD_START, False
        if strained:
            self.tasks, self.rows, self._since, self._rate, self._settled = 1, 0, now, 0.0, False
            return
        elapsed = now - self._since
        if elapsed < GROW_AFTER_SECONDS or self._settled:
            return
        rate, self.rows, self._since = self.rows / elapsed, 0, now
        if rate <= 0:
            return
        if self.tasks > 1 and rate < self._rate * WORTHWHILE:
            self.tasks, self._settled = self.tasks - 1, True
            return
        self._rate = rate
        self.tasks += 1
