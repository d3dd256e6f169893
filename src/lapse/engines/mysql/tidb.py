"""TiDB's own TTL in its own words: read from SHOW CREATE TABLE, written as ALTER TABLE, and what became of its jobs.

Nothing here talks to a server.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from enum import StrEnum

from lapse.engines.mysql.names import quote
from lapse.engines.zones import is_utc
from lapse.errors import InvalidValue, Unsupported
from lapse.model.interval import HOUR, MINUTE, SECOND, Interval, parse
from lapse.model.policy import Policy
from lapse.model.table import Table, TableKind

TIME_TYPES = ("date", "datetime", "timestamp")
HURRIED = Interval(micros=MINUTE)
"""The shortest job interval that TiDB takes: with it a job starts within seconds."""
HOURLY = Interval(micros=HOUR)

_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'             # text, such as a comment
      | "(?:[^"\\]|\\.|"")*"
      | /\*T!\[ttl\]\ (?P<option>(?:`(?:[^`]|``)*`|'[^']*'|[^`'*]|\*(?!/))*?)\ \*/
      | `(?:[^`]|``)*`
    """,
    re.VERBOSE | re.DOTALL,
)
_TTL = re.compile(r"TTL=`(?P<column>(?:[^`]|``)*)` \+ INTERVAL (?P<interval>.+)", re.DOTALL)
_ENABLE = re.compile(r"TTL_ENABLE='(?P<value>ON|OFF)'")
_EVERY = re.compile(r"TTL_JOB_INTERVAL='(?P<value>[^']*)'")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ttl:
    """What one table says. `interval` is None where TiDB's words for it are not Lapse's, as `'1:30' HOUR_MINUTE`."""

    column: str
    interval: Interval | None
    enabled: bool
    every: Interval | None

    def expires_like(self, policy: Policy) -> bool:
        return self.column == policy.column and self.interval == policy.interval


def read(create_statement: str) -> Ttl | None:
    """Only comments of the statement itself count, not what a name or a text in it looks like."""
    options = [found["option"] for found in _TOKEN.finditer(create_statement) if found["option"]]
    ttl = next((found for option in options if (found := _TTL.fullmatch(option))), None)
    if ttl is None:
        return None
    enable = next((found["value"] for option in options if (found := _ENABLE.fullmatch(option))), "ON")
    every = next((found["value"] for option in options if (found := _EVERY.fullmatch(option))), "")
    return Ttl(
        column=ttl["column"].replace("``", "`"),
        interval=_interval(f"INTERVAL {ttl['interval']}"),
        enabled=enable == "ON",
        every=_interval(every),
    )


def without_ttl(create_statement: str) -> str:
    """The statement as it would be on a table without TTL."""

    def keep(found: re.Match[str]) -> str:
        return "" if found["option"] else found[0]

    return _TOKEN.sub(keep, create_statement).rstrip()


def _interval(text: str) -> Interval | None:
    try:
        return parse(text)
    except InvalidValue:
        return None


def clause(policy: Policy, *, enabled: bool) -> str:
    """What ALTER TABLE is told. The interval of jobs is always written: TiDB's default depends on its version."""
    return f"{expiry(policy)} TTL_ENABLE = '{'ON' if enabled else 'OFF'}' TTL_JOB_INTERVAL = '{every(policy).to_go()}'"


def expiry(policy: Policy) -> str:
    assert policy.column is not None and policy.interval is not None
    return f"TTL = {quote(policy.column)} + {policy.interval.to_mysql()}"


def every(policy: Policy) -> Interval:
    """How often TiDB runs a job. Raises Unsupported for a cron that is no even interval."""
    if policy.job_interval is not None:
        if policy.job_interval.months or policy.job_interval.micros % MINUTE or not policy.job_interval:
            raise Unsupported(
                f"TiDB runs TTL jobs every so many minutes, and {policy.job_interval} is none",
                hint="TTL_JOB_INTERVAL = '1h'",
            )
        return policy.job_interval
    if policy.job_cron in (None, "@hourly"):
        return HOURLY
    raise Unsupported(
        f"TiDB's own TTL knows no cron, and ttl_job_cron is {policy.job_cron}", hint="TTL_JOB_INTERVAL = '1h' instead"
    )


_EXPRESSED = frozenset({"column", "interval", "pause", "job_cron", "job_interval", "time_zone", "label_metrics"})
_OF_LAPSE = frozenset({"guard", "grace", "row_stats_poll_interval", "delete_within"})
"""What concerns Lapse's look at the table and not how TiDB deletes."""
_PARAMETERS = frozenset(
    {"select_batch_size", "delete_batch_size", "adaptive", "select_as_of_system_time", "time_format"}
)
"""What TiDB has for the whole cluster or not at all, and what changes no row's fate."""


def refuse(table: Table, policy: Policy) -> list[str]:
    """Raises Unsupported for what TiDB's own TTL cannot do; returns notices."""
    name = table.name
    if table.kind is TableKind.PARTITIONED:
        raise Unsupported(
            f"table {name} has partitions: TiDB runs a job for each, which Lapse does not follow",
            hint=f"declare it with TiDB's client: ALTER TABLE {name} TTL = column + INTERVAL 30 DAY",
        )
    if table.kind is not TableKind.TABLE:
        raise Unsupported(f"{name} is a {table.kind}, and TTL works on tables")
    _refuse_expiry(table, policy)
    _refuse_column(table, policy)
    if table.referenced_by:
        children = ", ".join(sorted({str(reference.table) for reference in table.referenced_by}))
        raise Unsupported(f"TiDB allows no TTL on table {name}, because rows of {children} refer to it")
    every(policy)
    given = {field.name for field in fields(policy) if getattr(policy, field.name) != field.default}
    unknown = sorted(given - _EXPRESSED - _OF_LAPSE - _PARAMETERS)
    if unknown:
        raise Unsupported(
            f"TiDB's own TTL has nothing like ttl_{unknown[0]}, and Lapse deletes no rows by itself there",
            hint=f"ALTER TABLE {name} RESET (ttl_{unknown[0]})",
        )
    ignored = sorted(given & _PARAMETERS)
    return (
        [f"TiDB's own job has no parameter like {', '.join(f'ttl_{parameter}' for parameter in ignored)}"]
        if ignored
        else []
    )


def _refuse_expiry(table: Table, policy: Policy) -> None:
    name = table.name
    if policy.expire_after is not None:
        after = policy.expire_after
        raise Unsupported(
            "ttl_expire_after needs triggers and invisible columns, which TiDB does not have",
            hint=f"ALTER TABLE {name} ADD COLUMN renewed_at DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)"
            f" ON UPDATE CURRENT_TIMESTAMP(6); ALTER TABLE {name} TTL = renewed_at + {_as_mysql(after)}",
        )
    if policy.expression is not None:
        raise Unsupported(
            "TiDB's own TTL reads a column, and ttl_expiration_expression is an expression",
            hint=f"ALTER TABLE {name} ADD COLUMN expires_at DATETIME AS (…) VIRTUAL;"
            f" ALTER TABLE {name} TTL = expires_at + INTERVAL 0 SECOND",
        )
    after = policy.interval or Interval()
    if (after.months and after.micros) or after.micros % SECOND:
        raise Unsupported(f"TiDB counts in whole seconds or in whole months, and {after} is neither")


def _as_mysql(after: Interval) -> str:
    try:
        return after.to_mysql()
    except InvalidValue:
        return "INTERVAL 30 DAY"


def _refuse_column(table: Table, policy: Policy) -> None:
    column = table.column(policy.column or "")
    if column is None:
        raise Unsupported(f"table {table.name} has no column {policy.column}")
    if column.type.lower().split("(")[0].split()[0] not in TIME_TYPES:
        raise Unsupported(
            f"TiDB's own TTL reads DATE, DATETIME and TIMESTAMP, and column {column.name} is {column.type}",
            hint=f"ALTER TABLE {table.name} ADD COLUMN expires_at TIMESTAMP AS (FROM_UNIXTIME({column.name})) VIRTUAL",
        )


def reads_wall_clock(table: Table, policy: Policy) -> bool:
    column = table.column(policy.column or "")
    return column is None or not column.type.lower().startswith("timestamp")


def is_zone(policy: Policy, server: str) -> bool:
    """Does TiDB, whose global zone is `server`, read DATE and DATETIME as the policy does?"""
    return policy.zone == server or (is_utc(policy.zone) and is_utc(server))


class Ending(StrEnum):
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


_CANCELLED = ("turned off", "has been stopped", "out of TTL job schedule window", "has been removed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What TiDB's history says about a job that is over: rows that it sent to DELETE, which are an upper bound."""

    ending: Ending
    expired: int
    deleted: int
    errors: int
    message: str = ""


def report(summary: str | None, expired: int | None, deleted: int | None, errors: int | None) -> Report:
    """TiDB calls every job finished; what stopped one is in its summary alone."""
    try:
        found = json.loads(summary or "{}")
    except json.JSONDecodeError:
        found = {}
    message = str(found.get("scan_task_err") or "") if isinstance(found, dict) else ""
    ending = Ending.FINISHED
    if message:
        ending = Ending.CANCELLED if any(words in message for words in _CANCELLED) else Ending.FAILED
    return Report(ending=ending, expired=expired or 0, deleted=deleted or 0, errors=errors or 0, message=message)
