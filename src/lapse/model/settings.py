"""Global settings: the TiDB proposal's variables and Lapse's own. Live: a change reaches running workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any

from lapse.errors import InvalidValue
from lapse.model import interval
from lapse.model.interval import Interval
from lapse.model.suggestion import suggest_or_list

MAX_INT = 2**63 - 1
MAX_BATCH = 10_240
MAX_WORKERS = 256
HOURLY = "@hourly"
FOREVER = "forever"
CLOCK_HOLD = "lapse_clock_hold"
"""Stored beside the settings, but not one: why the database's clock is not trusted, until a person confirms it."""
STORED_GATE = "lapse_gate_sql"
"""Once a setting: a query in a table runs with the rights of the worker, not of its author. One that is still there
keeps every job from running, since a gate must not open by itself."""
OF_WORKERS = {
    STORED_GATE: "LAPSE_GATE_SQL",
    "lapse_archives": "LAPSE_ARCHIVES",
    "lapse_notify_url": "LAPSE_NOTIFY_URL",
    "lapse_notify_command": "LAPSE_NOTIFY_COMMAND",
    "lapse_notify_secret": "LAPSE_NOTIFY_SECRET",
}
"""Not settings: a role that may write settings must not have workers run a query or a program, or reach an address."""
MODES = ("whisper", "gentle", "fast")
EVERYONE = "*"
AUTO = -1
"""`tidb_ttl_running_tasks`: Lapse decides."""


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    """A time of day with its offset from UTC, written `HH:MM +0000`."""

    time: time
    offset_minutes: int = 0

    def __str__(self) -> str:
        sign = "-" if self.offset_minutes < 0 else "+"
        hours, minutes = divmod(abs(self.offset_minutes), 60)
        return f"{self.time:%H:%M} {sign}{hours:02}{minutes:02}"

    def minute_of_day_utc(self) -> int:
        return (self.time.hour * 60 + self.time.minute - self.offset_minutes) % (24 * 60)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    name: str
    default: str
    allowed: str
    help: str
    parse: Callable[[str, str], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """All settings, parsed. Build it with `from_texts`."""

    job_enable: bool
    job_run_interval: Interval | None
    window_start: TimeOfDay
    window_end: TimeOfDay
    scan_worker_count: int
    scan_batch_size: int
    delete_worker_count: int
    delete_batch_size: int
    delete_rate_limit: int
    running_tasks: int
    job_timeout: Interval
    history_retention: Interval
    ledger_retention: Interval | None
    archive_backlog: int
    heartbeat_interval: Interval
    mode: str
    gate_patience: Interval
    replicas: str
    replica_lag_limit: Interval
    checkpoint_interval: Interval
    vacuum_debt_limit: int
    statement_timeout: Interval
    trusted_owners: str
    clock_hold: str | None = None
    stored_gate: bool = False

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> Settings:
        values = {field: read(name, texts.get(name)) for field, name in _FIELDS.items()}
        return cls(**values, clock_hold=texts.get(CLOCK_HOLD), stored_gate=bool(texts.get(STORED_GATE)))

    def blocker(self, now: datetime) -> str | None:
        """What keeps every job from running now."""
        if not self.job_enable:
            return "tidb_ttl_job_enable is OFF"
        if self.clock_hold is not None:
            return self.clock_hold
        if self.stored_gate:
            return (
                f"the query in {STORED_GATE} is not run: give it to the workers as $LAPSE_GATE_SQL and delete that row"
            )
        return None if self.window_is_open(now) else "outside the schedule window"

    def trusts(self, owner: str | None) -> bool:
        """Are the comments on this role's tables obeyed? Where tables have no owners, only everyone can be trusted."""
        return self.trusted_owners == EVERYONE or (owner is not None and owner in self.trusted_owners.split(", "))

    def counts_replica(self, name: str) -> bool:
        """Does the lag of the replica with this name count?"""
        names = [each for each in self.replicas.split(", ") if each]
        wanted = [each for each in names if not each.startswith("-")]
        return f"-{name}" not in names and (not wanted or name in wanted or EVERYONE in wanted)

    def window_is_open(self, now: datetime) -> bool:
        """The window includes its last minute and may cross midnight."""
        start, end = self.window_start.minute_of_day_utc(), self.window_end.minute_of_day_utc()
        utc = now.astimezone(UTC)
        minute = utc.hour * 60 + utc.minute
        return start <= minute <= end if start <= end else minute >= start or minute <= end


def read(name: str, text: str | None) -> Any:
    """The parsed value of one setting, or its default."""
    setting = find(name)
    return setting.parse(setting.default if text is None else text, setting.name)


def normalise(name: str, text: str) -> tuple[str, str]:
    """Check a new value; returns the setting's own name and the text to store."""
    setting = find(name)
    value = setting.parse(text, setting.name)
    if value is None:
        return setting.name, setting.default
    if isinstance(value, bool):
        return setting.name, "ON" if value else "OFF"
    return setting.name, str(value)


def find(name: str) -> Setting:
    variable = OF_WORKERS.get(name.lower())
    if variable is not None:
        raise InvalidValue(
            "setting", name, "is not kept in the database", hint=f"give it to the workers as ${variable}"
        )
    try:
        return SETTINGS[name.lower()]
    except KeyError:
        hint = suggest_or_list(name, sorted(SETTINGS), "known settings:")
        raise InvalidValue("setting", name, "is not known", hint=hint) from None


def _boolean(text: str, name: str) -> bool:
    value = {"on": True, "1": True, "true": True, "off": False, "0": False, "false": False}.get(text.strip().lower())
    if value is None:
        raise InvalidValue(name, text, "must be ON or OFF")
    return value


def _integer(low: int, high: int, *, also: int | None = None) -> Callable[[str, str], int]:
    def parse(text: str, name: str) -> int:
        allowed = f"must be a whole number from {low} to {high}" + (f", or {also}" if also is not None else "")
        if not re.fullmatch(r"\s*[-+]?\d+\s*", text):
            raise InvalidValue(name, text, allowed)
        value = int(text)
        if not low <= value <= high and value != also:
            raise InvalidValue(name, text, allowed)
        return value

    return parse


def _interval(text: str, name: str) -> Interval:
    value = interval.parse(text, name=name)
    if not value:
        raise InvalidValue(name, text, "must be more than nothing")
    return value


def _mode(text: str, name: str) -> str:
    word = text.strip().lower()
    if word not in MODES:
        raise InvalidValue(name, text, f"must be one of {', '.join(MODES)}")
    return word


def _names(text: str, name: str) -> str:
    names = [each.strip() for each in text.split(",")]
    if EVERYONE in names and names != [EVERYONE]:
        raise InvalidValue(name, text, f"must be names separated by commas, or {EVERYONE} alone")
    return ", ".join(dict.fromkeys(filter(None, names)))


def _run_interval(text: str, name: str) -> Interval | None:
    return None if text == HOURLY else _interval(text, name)


def _retention(text: str, name: str) -> Interval | None:
    return None if text.strip().lower() == FOREVER else _interval(text, name)


def _time_of_day(text: str, name: str) -> TimeOfDay:
    match = re.fullmatch(r"\s*(\d{1,2}):(\d{2})(?::00)?\s*([-+])?(\d{2}):?(\d{2})?\s*|\s*(\d{1,2}):(\d{2})\s*", text)
    allowed = "must be a time of day such as '01:00 +0000'"
    if match is None:
        raise InvalidValue(name, text, allowed)
    hour, minute = int(match[1] or match[6]), int(match[2] or match[7])
    offset = (int(match[4] or 0) * 60 + int(match[5] or 0)) * (-1 if match[3] == "-" else 1)
    if hour > 23 or minute > 59 or abs(offset) > 14 * 60:
        raise InvalidValue(name, text, allowed)
    return TimeOfDay(time(hour, minute), offset)


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            name="tidb_ttl_job_enable",
            default="ON",
            allowed="ON or OFF",
            help="OFF schedules no job and cancels those that run.",
            parse=_boolean,
        ),
        Setting(
            name="tidb_ttl_job_run_interval",
            default=HOURLY,
            allowed="a duration, or @hourly",
            help="How often a table's job runs when its policy sets neither a cron nor an interval.",
            parse=_run_interval,
        ),
        Setting(
            name="tidb_ttl_job_schedule_window_start_time",
            default="00:00 +0000",
            allowed="HH:MM ±HHMM",
            help="Jobs run only inside this daily window; outside it they are paused.",
            parse=_time_of_day,
        ),
        Setting(
            name="tidb_ttl_job_schedule_window_end_time",
            default="23:59 +0000",
            allowed="HH:MM ±HHMM",
            help="The window's last minute, included.",
            parse=_time_of_day,
        ),
        Setting(
            name="tidb_ttl_scan_worker_count",
            default="4",
            allowed=f"1 to {MAX_WORKERS}",
            help="Tasks that one process works on at the same time.",
            parse=_integer(1, MAX_WORKERS),
        ),
        Setting(
            name="tidb_ttl_scan_batch_size",
            default="500",
            allowed=f"1 to {MAX_BATCH}",
            help="Starting size of a select batch, where the policy sets none.",
            parse=_integer(1, MAX_BATCH),
        ),
        Setting(
            name="tidb_ttl_delete_worker_count",
            default="4",
            allowed=f"1 to {MAX_WORKERS}",
            help="Delete statements that one process runs at the same time.",
            parse=_integer(1, MAX_WORKERS),
        ),
        Setting(
            name="tidb_ttl_delete_batch_size",
            default="100",
            allowed=f"1 to {MAX_BATCH}",
            help="Starting size of a delete batch, where the policy sets none.",
            parse=_integer(1, MAX_BATCH),
        ),
        Setting(
            name="tidb_ttl_delete_rate_limit",
            default="0",
            allowed="0 or more",
            help="Rows per second that all workers together may delete, over all tables; 0 is no limit.",
            parse=_integer(0, MAX_INT),
        ),
        Setting(
            name="tidb_ttl_running_tasks",
            default="-1",
            allowed="-1, or 1 or more",
            help="Tasks that all workers together may run; -1 lets Lapse decide.",
            parse=_integer(1, MAX_INT, also=AUTO),
        ),
        Setting(
            name="lapse_job_timeout",
            default="6 hours",
            allowed="a duration",
            help="A job that has worked for longer ends as timed_out.",
            parse=_interval,
        ),
        Setting(
            name="lapse_history_retention",
            default="90 days",
            allowed="a duration",
            help="How long ended jobs stay in the history.",
            parse=_interval,
        ),
        Setting(
            name="lapse_ledger_retention",
            default=FOREVER,
            allowed=f"a duration, or {FOREVER}",
            help="How long entries stay in the ledger; an entry records what was removed.",
            parse=_retention,
        ),
        Setting(
            name="lapse_archive_backlog",
            default="1000000",
            allowed="1 or more",
            help="Rows of one table that may wait for their export into files; with more, its jobs wait, too.",
            parse=_integer(1, MAX_INT),
        ),
        Setting(
            name="lapse_heartbeat_interval",
            default="10 seconds",
            allowed="a duration",
            help="Worker heartbeat interval; after two missed beats its tasks are taken over.",
            parse=_interval,
        ),
        Setting(
            name="lapse_mode",
            default="gentle",
            allowed=f"one of {', '.join(MODES)}",
            help="How much of the time Lapse may delete while the application is at work.",
            parse=_mode,
        ),
        Setting(
            name="lapse_gate_patience",
            default="10 minutes",
            allowed="a duration",
            help="A table whose job has waited at a closed gate for longer is shown as blocked; the job keeps trying.",
            parse=_interval,
        ),
        Setting(
            name="lapse_replicas",
            default="",
            allowed="names separated by commas",
            help="The replicas whose lag counts, by their application_name (PostgreSQL); empty is all of them, and "
            "-name leaves one out, such as a standby that is delayed on purpose.",
            parse=_names,
        ),
        Setting(
            name="lapse_replica_lag_limit",
            default="5 seconds",
            allowed="a duration",
            help="Nothing is deleted while a replica is further behind; from 30 % of it on Lapse yields.",
            parse=_interval,
        ),
        Setting(
            name="lapse_checkpoint_interval",
            default="10 seconds",
            allowed="a duration",
            help="While an application is at work, Lapse yields before the log that is written makes the server begin "
            "checkpoints more often than this (PostgreSQL).",
            parse=_interval,
        ),
        Setting(
            name="lapse_vacuum_debt_limit",
            default="100",
            allowed="0 (no limit) or more",
            help="A job waits while its table has more dead rows than this many times those at which autovacuum comes, "
            "counted as 10,000 at least; from half of it on Lapse yields (PostgreSQL).",
            parse=_integer(0, MAX_INT),
        ),
        Setting(
            name="lapse_statement_timeout",
            default="2 seconds",
            allowed="a duration",
            help="A delete that takes longer is cut short and tried with fewer rows; a single row that takes longer is "
            "held (PostgreSQL).",
            parse=_interval,
        ),
        Setting(
            name="lapse_trusted_owners",
            default="",
            allowed=f"names of roles separated by commas, or {EVERYONE}",
            help="Owners on whose tables a policy in a comment is obeyed, besides the worker's own role; elsewhere "
            f"it is a proposal. {EVERYONE} obeys every comment, also where tables have no owners.",
            parse=_names,
        ),
    )
}

_FIELDS = {
    "job_enable": "tidb_ttl_job_enable",
    "job_run_interval": "tidb_ttl_job_run_interval",
    "window_start": "tidb_ttl_job_schedule_window_start_time",
    "window_end": "tidb_ttl_job_schedule_window_end_time",
    "scan_worker_count": "tidb_ttl_scan_worker_count",
    "scan_batch_size": "tidb_ttl_scan_batch_size",
    "delete_worker_count": "tidb_ttl_delete_worker_count",
    "delete_batch_size": "tidb_ttl_delete_batch_size",
    "delete_rate_limit": "tidb_ttl_delete_rate_limit",
    "running_tasks": "tidb_ttl_running_tasks",
    "job_timeout": "lapse_job_timeout",
    "history_retention": "lapse_history_retention",
    "ledger_retention": "lapse_ledger_retention",
    "archive_backlog": "lapse_archive_backlog",
    "heartbeat_interval": "lapse_heartbeat_interval",
    "mode": "lapse_mode",
    "gate_patience": "lapse_gate_patience",
    "replicas": "lapse_replicas",
    "replica_lag_limit": "lapse_replica_lag_limit",
    "checkpoint_interval": "lapse_checkpoint_interval",
    "vacuum_debt_limit": "lapse_vacuum_debt_limit",
    "statement_timeout": "lapse_statement_timeout",
    "trusted_owners": "lapse_trusted_owners",
}
