"""How hard to work: flat out on an idle server, a small share of the time under foreground load, not at all when the
server is overloaded.

Effort goes up slowly and down at once. Every reason is kept, for the status and the metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock
from time import monotonic

from sqlalchemy import Connection

from lapse.catalog import Catalog, settings
from lapse.engines.base import Gauge
from lapse.errors import Blocked, LapseError
from lapse.model.blocked import BlockCode
from lapse.model.settings import Settings
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

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: not available ({self.note})"
        limit = self.stop if self.stops else self.soft
        return f"{self.name} {self.value:.3g}{self.unit} of {limit:.3g}{self.unit}"


class Controller(Service):
    """Reads the gauges every so often; tasks ask it how long to pause, workers how many tasks to run."""

    name = "controller"
    seconds = 0.25
    at_once = True

    def __init__(self, catalog: Catalog, gate_sql: str | None = None) -> None:
        super().__init__()
        self._catalog = catalog
        self._gate_sql = gate_sql
        self._closed_at: float | None = None
        self._lock = Lock()
        self._smoothed: dict[str, float] = {}
        self._counters: dict[str, tuple[float, float]] = {}
        self._duty = 1.0
        self._duty_at = monotonic()
        self._mode = "gentle"
        self.readings: tuple[Reading, ...] = ()
        self._growth = _Growth()
        self._known = Event()
        self._known.set()
        self._tasks_at_work = 0
        self._read_at = float("-inf")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While a task runs. Without any the gauges are not read: no task would use them."""
        with self._lock:
            self._tasks_at_work += 1
            is_stale = monotonic() - self._read_at > STALE_SECONDS
            if is_stale and self._thread is not None:
                self._known.clear()
        if is_stale:
            self.wake()
        try:
            yield
        finally:
            with self._lock:
                self._tasks_at_work -= 1

    def start(self) -> None:
        self._known.clear()
        super().start()

    def pause(self) -> float:
        """An application that arrives is noticed soon; beside one that is known, looks cost it more than they tell."""
        return YIELDING_SECONDS if self._yields() else self.seconds

    def run_once(self) -> None:
        if self._known.is_set() and self._thread is not None and not self._tasks_at_work:
            return
        try:
            with self._catalog.reading() as connection:
                current = settings.load_settings(connection)
                # A single look at what jumps about may find a busy server idle; the first judgement needs several.
                for _ in range(0 if self._known.is_set() else FIRST_LOOKS - 1):
                    self._look(connection, current)
                    self._closing.wait(FIRST_LOOK_SECONDS)
                readings = self._look(connection, current)
            with self._lock:
                self._mode = current.mode
                self.readings = readings
                self._read_at = monotonic()
                is_closed = any(reading.stops for reading in readings)
                self._closed_at = (self._closed_at or monotonic()) if is_closed else None
                self._move_duty()
                self._growth.observe(strained=self._pressure() > FREE_BELOW)
        finally:
            # A database that is unreachable now is met again by the tasks that need it.
            self._known.set()

    def current_readings(self, connection: Connection, current: Settings) -> tuple[Reading, ...]:
        """Those that tasks go by, where some are at work; otherwise the gauges are read now."""
        with self._lock:
            if monotonic() - self._read_at <= CURRENT_SECONDS:
                return self.readings
        return self._look(connection, current)

    def _look(self, connection: Connection, current: Settings) -> tuple[Reading, ...]:
        gauges = self._catalog.engine.gauges(connection, current)
        if self._gate_sql:
            gauges = [*gauges, self._custom(connection, self._gate_sql)]
        return tuple(self._judge(gauge) for gauge in gauges)

    def stop_reason(self) -> str | None:
        """Why nothing may be deleted now. Waits for the first reading of the gauges."""
        self._known.wait(FIRST_READING_SECONDS)
        with self._lock:
            stopping = next((reading for reading in self.readings if reading.stops), None)
        return f"gate: {stopping}" if stopping else None

    def shut_gate(self, patience: float) -> Blocked | None:
        """The gate that has been closed for longer than `patience` seconds, and what opens it."""
        with self._lock:
            closed = self._closed_at is not None and monotonic() - self._closed_at > patience
            shut = next((reading for reading in self.readings if closed and reading.stops), None)
        if shut is None:
            return None
        said = f" ({shut.note})" if shut.note else ""
        limit = f", the limit is {shut.stop:.3g}{shut.unit}" if shut.stop > SMALLEST_POSITIVE else ""
        text = f"the gate {shut.name} stays closed: {shut.value:.3g}{shut.unit}{said}{limit}"
        hint = f"its job goes on when it opens; see {' and '.join(shut.settings)}" if shut.settings else None
        return Blocked(BlockCode.GATE, text, hint=hint)

    def pause_after(self, seconds: float, busy: float, *, urgent: bool = False) -> tuple[float, str | None]:
        """How long to rest after a batch that took `seconds`, of which the server was `busy`, and why.

        The server rests during the remainder, too: on its way to us and back, and while we count.
        """
        with self._lock:
            duty = max(self._duty, URGENT_DUTY) if urgent else self._duty
            worst = max(self.readings, key=lambda reading: reading.pressure, default=None)
        pause = busy / duty - seconds
        if pause < SHORTEST_PAUSE_SECONDS:
            return 0.0, None
        return pause, f"yielding: {worst}" if worst else f"mode {self._mode}"

    def batch_seconds(self) -> float:
        """How long the statement of a batch may take now.

        What queues behind it waits as long as it lasts: short statements with short rests are felt less than long ones
        with long rests.
        """
        features = self._catalog.engine.features
        return features.short_seconds if self._yields() else features.target_seconds

    def _yields(self) -> bool:
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
            note=gauge.note,
            settings=gauge.settings,
        )

    def _rate(self, name: str, value: float) -> float:
        now = monotonic()
        before, at = self._counters.get(name, (value, now))
        self._counters[name] = (value, now)
        return max(0.0, (value - before) / (now - at)) if now > at else 0.0

    def _pressure(self) -> float:
        return max((reading.pressure for reading in self.readings), default=0.0)

    def _least_duty(self) -> float:
        gentle = self._catalog.engine.features.gentle_share
        return {"whisper": WHISPER_DUTY, "fast": FAST_DUTY}.get(self._mode, gentle)

    def _move_duty(self) -> None:
        least = self._least_duty()
        room = min(1.0, max(0.0, (1 - self._pressure()) / (1 - FREE_BELOW)))
        target = least + (1.0 - least) * room if self._mode != "whisper" else least
        now = monotonic()
        if target < self._duty:
            self._duty = target
        else:
            self._duty = min(target, self._duty + RECOVERY_PER_SECOND * (now - self._duty_at))
        self._duty_at = now


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
