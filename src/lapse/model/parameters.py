"""The storage parameters: names, aliases, how each is read and written, what it may be.

One table drives parsing, validation, rendering, `--help` and the reference documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from lapse.errors import InvalidValue
from lapse.model import archive, interval, keep_last
from lapse.model.interval import SECOND, Interval
from lapse.model.suggestion import suggest_or_list
from lapse.model.table import TimeFormat

HIDE_CHOICES = ("off", "view", "policy")
CRON_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MAX_BATCH = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """`field` is the attribute of Policy that holds it; None where the parameter is accepted without effect."""

    name: str
    field: str | None
    help: str
    allowed: str
    parse: Callable[[str, str], Any]
    default: str = ""
    notice: str | None = None


def find(name: str) -> Parameter:
    parameter = PARAMETERS.get(name.lower())
    if parameter is None:
        hint = suggest_or_list(name, PARAMETERS, "known parameters:")
        raise InvalidValue("storage parameter", name, "is not known", hint=hint)
    return parameter


def cron_fields(text: str) -> str:
    """Five-field cron for a word such as `@hourly`."""
    return CRON_WORDS.get(text.lower(), text)


def write(value: object) -> str:
    """The text of a value, such that its parameter's `parse` reads it back."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _boolean(text: str, name: str) -> bool:
    words = {
        "on": True,
        "true": True,
        "yes": True,
        "1": True,
        "off": False,
        "false": False,
        "no": False,
        "0": False,
    }
    value = words.get(text.strip().lower())
    if value is None:
        raise InvalidValue(name, text, "must be 'on' or 'off'")
    return value


def _integer(low: int, high: int) -> Callable[[str, str], int]:
    def parse(text: str, name: str) -> int:
        allowed = f"must be a whole number from {low} to {high}"
        if not re.fullmatch(r"\s*[-+]?\d+\s*", text) or not low <= int(text) <= high:
            raise InvalidValue(name, text, allowed)
        return int(text)

    return parse


def _interval(text: str, name: str) -> Interval:
    return interval.parse(text, name=name)


def _positive_interval(text: str, name: str) -> Interval:
    value = interval.parse(text, name=name)
    if not value:
        raise InvalidValue(name, text, "must be longer than zero")
    return value


def _poll_interval(text: str, name: str) -> Interval:
    value = _positive_interval(text, name)
    if value.months or value.micros < SECOND:
        raise InvalidValue(name, text, "must be at least one second, without months")
    return value


def _fixed_interval(text: str, name: str) -> Interval:
    value = _positive_interval(text, name)
    if value.months:
        raise InvalidValue(name, text, "must not contain months")
    return value


def _staleness(text: str, name: str) -> Interval:
    """CockroachDB writes `'30s'` or `'-30s'`: both mean thirty seconds ago."""
    return _fixed_interval(text.strip().removeprefix("-"), name)


def _cron(text: str, name: str) -> str:
    word = text.strip()
    allowed = f"must be a cron expression of five fields, or one of {', '.join(CRON_WORDS)}"
    fields = cron_fields(word)
    if len(fields.split()) != 5:
        raise InvalidValue(name, text, allowed)
    try:
        CronSim(fields, _EPOCH)
    except CronSimError as error:
        raise InvalidValue(name, text, f"{allowed} ({error})") from error
    return word


def _expression(text: str, name: str) -> str:
    if not text.strip():
        raise InvalidValue(name, text, "must be an SQL expression")
    return text.strip()


def _name(text: str, name: str) -> str:
    if not text.strip():
        raise InvalidValue(name, text, "must be a name", hint=f"RESET ({name}) goes without")
    return text.strip()


def _time_zone(text: str, name: str) -> str:
    zone = text.strip()
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise InvalidValue(
            name,
            text,
            "must be an IANA time zone such as 'UTC' or 'Europe/Berlin'",
            hint="a fixed offset is written 'Etc/GMT+8', which is 8 hours behind UTC (-08:00)",
        ) from None
    return zone


def _time_format(text: str, name: str) -> TimeFormat:
    try:
        return TimeFormat(text.strip().lower())
    except ValueError:
        raise InvalidValue(name, text, f"must be one of {', '.join(TimeFormat)}") from None


def _hide(text: str, name: str) -> str:
    word = text.strip().lower()
    if word not in HIDE_CHOICES:
        raise InvalidValue(name, text, f"must be one of {', '.join(HIDE_CHOICES)}")
    return word


def _ttl(text: str, name: str) -> bool:
    if not _boolean(text, name):
        raise InvalidValue(name, text, "is derived and can only be 'on'", hint="use RESET (ttl) to remove TTL")
    return True


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

PARAMETERS: dict[str, Parameter] = {
    parameter.name: parameter
    for parameter in (
        Parameter(
            name="ttl_expire_after",
            field="expire_after",
            help="Rows expire this long after they were inserted or last updated (managed column).",
            allowed="a duration longer than zero",
            parse=_positive_interval,
        ),
        Parameter(
            name="ttl_renew_every",
            field="renew_every",
            help="An update renews a row's expiry only this long after the last renewal; cheaper for rows that change "
            "often, which may then expire as much earlier.",
            allowed="a duration without months, shorter than ttl_expire_after",
            parse=_fixed_interval,
        ),
        Parameter(
            name="ttl_expiration_expression",
            field="expression",
            help="When a row expires: an expression over the row's own columns; NULL is never.",
            allowed="one scalar SQL expression",
            parse=_expression,
        ),
        Parameter(
            name="ttl_filter",
            field="filter",
            help="Only rows for which this is true expire; it reads the row's own columns.",
            allowed="one SQL expression that is true or false",
            parse=_expression,
        ),
        Parameter(
            name="ttl_keep_last",
            field="keep_last",
            help="The last N rows of each group never expire: those with the largest ORDER BY column.",
            allowed="'N BY (column, …) ORDER BY column', N from 1 to 1000",
            parse=keep_last.parse,
        ),
        Parameter(
            name="ttl",
            field=None,
            help="Whether TTL is on; derived. RESET (ttl) removes the policy.",
            allowed="'on'",
            parse=_ttl,
        ),
        Parameter(
            name="ttl_select_batch_size",
            field="select_batch_size",
            default="500",
            help="Expired rows picked at a time. Starting point; once set, a hard upper bound.",
            allowed=f"1 to {MAX_BATCH}",
            parse=_integer(1, MAX_BATCH),
        ),
        Parameter(
            name="ttl_delete_batch_size",
            field="delete_batch_size",
            default="100",
            help="Rows deleted by one statement. Starting point; once set, a hard upper bound.",
            allowed=f"1 to {MAX_BATCH}",
            parse=_integer(1, MAX_BATCH),
        ),
        Parameter(
            name="ttl_select_rate_limit",
            field="select_rate_limit",
            default="0",
            help="Rows examined per second by the whole fleet; 0 is no limit.",
            allowed="0 or more",
            parse=_integer(0, 2**63 - 1),
        ),
        Parameter(
            name="ttl_delete_rate_limit",
            field="delete_rate_limit",
            default="0",
            help="Rows deleted per second by the whole fleet; 0 is no limit.",
            allowed="0 or more",
            parse=_integer(0, 2**63 - 1),
        ),
        Parameter(
            name="ttl_row_stats_poll_interval",
            field="row_stats_poll_interval",
            help="While a job runs, count rows and expired rows this often; unset counts nothing.",
            allowed="a duration of at least one second",
            parse=_poll_interval,
        ),
        Parameter(
            name="ttl_pause",
            field="pause",
            default="off",
            help="Stop deleting; a running job pauses and goes on from its checkpoint.",
            allowed="'on' or 'off'",
            parse=_boolean,
        ),
        Parameter(
            name="ttl_job_cron",
            field="job_cron",
            default="@hourly",
            help="When the job runs, in UTC.",
            allowed=f"a cron expression, or one of {', '.join(CRON_WORDS)}",
            parse=_cron,
        ),
        Parameter(
            name="ttl_job_interval",
            field="job_interval",
            help="How often the job runs (TiDB's TTL_JOB_INTERVAL), instead of a cron.",
            allowed="a duration without months",
            parse=_fixed_interval,
        ),
        Parameter(
            name="ttl_label_metrics",
            field="label_metrics",
            default="off",
            help="Give this table its own label in the metrics.",
            allowed="'on' or 'off'",
            parse=_boolean,
        ),
        Parameter(
            name="ttl_select_as_of_system_time",
            field="select_as_of_system_time",
            help="Find expired rows on a replica of the worker's URL (`lapse_replicas`) that is no further behind; the "
            "primary checks again what it deletes. PostgreSQL, MariaDB and MySQL; elsewhere it has no effect, and a "
            "notice says so.",
            allowed="a duration without months",
            parse=_staleness,
        ),
        Parameter(
            name="ttl_adaptive",
            field="adaptive",
            default="on",
            help="Let batches grow and shrink to hold the target time per statement.",
            allowed="'on' or 'off'",
            parse=_boolean,
        ),
        Parameter(
            name="ttl_time_zone",
            field="time_zone",
            default="UTC",
            help="Zone of times that are stored without one; must be given where the server's own zone is not UTC.",
            allowed="an IANA time zone",
            parse=_time_zone,
        ),
        Parameter(
            name="ttl_time_format",
            field="time_format",
            help="How the time column stores time, where the engine has no time type; detected when unset.",
            allowed=f"one of {', '.join(TimeFormat)}",
            parse=_time_format,
        ),
        Parameter(
            name="ttl_hide_expired",
            field="hide_expired",
            default="off",
            help="Hide expired rows at once: through the view <table>_live, or by a row-security policy.",
            allowed=f"one of {', '.join(HIDE_CHOICES)}",
            parse=_hide,
        ),
        Parameter(
            name="ttl_partition_drop",
            field="partition_drop",
            default="off",
            help="Drop a partition whose whole range has expired instead of deleting its rows.",
            allowed="'on' or 'off'",
            parse=_boolean,
        ),
        Parameter(
            name="ttl_replication_origin",
            field="replication_origin",
            help="PostgreSQL: delete under this replication origin, so that subscribers can leave TTL deletes out.",
            allowed="the name of a replication origin",
            parse=_name,
        ),
        Parameter(
            name="ttl_archive",
            field="archive",
            help="Move expired rows to an archive table, or to Parquet files, as they are deleted; `lapse restore` "
            "brings them back.",
            allowed="'table:' for <table>_archive, 'table:' and a name, or 'file:///folder', 's3://bucket/prefix', "
            "'gs://…', 'az://…'",
            parse=archive.read,
        ),
        Parameter(
            name="ttl_archive_keep",
            field="archive_keep",
            help="Delete archived rows, or files of them, this long after they were archived; unset keeps them.",
            allowed="a duration longer than zero",
            parse=_positive_interval,
        ),
        Parameter(
            name="ttl_ledger_keys",
            field="ledger_keys",
            default="off",
            help="Record the keys of deleted rows as keyed hashes; `lapse ledger URL TABLE --key KEY` finds them.",
            allowed="'on' or 'off'",
            parse=_boolean,
        ),
        Parameter(
            name="ttl_delete_within",
            field="delete_within",
            default="1 day",
            help="The promise: expired rows are gone this long after they expired.",
            allowed="a duration longer than zero",
            parse=_positive_interval,
        ),
        Parameter(
            name="ttl_guard",
            field="guard",
            default="on",
            help="Let the first run wait for confirmation when it would delete more than half of a table, or when the "
            "oldest row is from an implausible time.",
            allowed="'on' or 'off'",
            parse=_boolean,
        ),
        Parameter(
            name="ttl_grace",
            field="grace",
            default="10 minutes",
            help="Workers delete nothing for this long after the policy was declared or shortened; `lapse run` does "
            "not wait. A change of it counts for a period that has not ended.",
            allowed="a duration, or '0 seconds'",
            parse=_interval,
        ),
        Parameter(
            name="ttl_range_concurrency",
            field=None,
            help="Accepted for CockroachDB compatibility; has no effect.",
            allowed="1 or more",
            parse=_integer(1, 2**31),
            notice="ttl_range_concurrency has no effect: Lapse decides how many ranges to work on",
        ),
        Parameter(
            name="ttl_automatic_column",
            field=None,
            help="Accepted for CockroachDB compatibility; has no effect.",
            allowed="'on' or 'off'",
            parse=_boolean,
            notice="ttl_automatic_column has no effect: ttl_expire_after adds the column, its RESET removes it",
        ),
    )
}
