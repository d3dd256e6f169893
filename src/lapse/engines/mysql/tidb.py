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
        """TiDB writes the column as it was made or in lower case, which are one name to it."""
        return self.column.lower() == (policy.column or "").lower() and self.interval == policy.interval


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
    return f"{expiry(policy)} TTL_ENABLE = '{'ON' if enabled else 'OFF'}' {job_interval(policy)}"


def job_interval(policy: Policy) -> str:
    return f"TTL_JOB_INTERVAL = '{(every(policy) or HOURLY).to_go()}'"


def expiry(policy: Policy) -> str:
    assert policy.column is not None and policy.interval is not None
    return f"TTL = {quote(policy.column)} + {policy.interval.to_mysql()}"


def every(policy: Policy) -> Interval | None:
    """How often TiDB runs a job; None for what it cannot do."""
    if policy.job_interval is not None:
        whole = not (policy.job_interval.months or policy.job_interval.micros % MINUTE)
        return policy.job_interval if whole and policy.job_interval else None
    return HOURLY if policy.job_cron in (None, "@hourly") else None


_EXPRESSED = frozenset({"column", "interval", "pause", "job_cron", "job_interval", "time_zone", "label_metrics"})
_OF_LAPSE = frozenset({"guard", "grace", "row_stats_poll_interval", "delete_within"})
"""What concerns Lapse's look at the table and not how TiDB deletes."""
_WITHOUT_EFFECT = frozenset({"select_as_of_system_time", "time_format"})
"""What changes nothing here, whichever way rows are deleted."""


def refuse(table: Table, policy: Policy) -> None:
    """Raises Unsupported for what neither TiDB nor Lapse can do there."""
    name = table.name
    if table.kind not in (TableKind.TABLE, TableKind.PARTITIONED):
        raise Unsupported(f"{name} is a {table.kind}, and TTL works on tables")
    if policy.expire_after is not None:
        raise Unsupported(
            "ttl_expire_after needs triggers and invisible columns, which TiDB does not have",
            hint=f"ALTER TABLE {name} ADD COLUMN renewed_at DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)"
            f" ON UPDATE CURRENT_TIMESTAMP(6); ALTER TABLE {name} TTL = renewed_at + {_as_mysql(policy.expire_after)}",
        )
    if policy.column is not None and table.column(policy.column) is None:
        raise Unsupported(f"table {name} has no column {policy.column}")
    if policy.archive is not None:
        raise Unsupported("archives do not work on TiDB yet")
    if policy.ledger_keys:
        raise Unsupported("ttl_ledger_keys does not work on TiDB yet")
    if policy.keep_last is not None:
        raise Unsupported("ttl_keep_last does not work on TiDB yet")
    if policy.partition_drop:
        raise Unsupported(
            "TiDB cannot lock a table, so a partition that Lapse has looked at may be another one when it is dropped",
            hint="without ttl_partition_drop its rows are deleted one by one",
        )


def why_not(table: Table, policy: Policy) -> str | None:
    """Why TiDB's own TTL cannot do what a policy says, and Lapse's own job has to; None where it can."""
    if table.kind is TableKind.PARTITIONED:
        return "it has partitions, and TiDB would run a job for each, which Lapse does not follow"
    if table.referenced_by:
        children = ", ".join(sorted({str(reference.table) for reference in table.referenced_by}))
        return f"rows of {children} refer to it"
    if policy.expression is not None:
        return "TiDB reads a column, and ttl_expiration_expression is an expression"
    after = policy.interval or Interval()
    if (after.months and after.micros) or after.micros % SECOND:
        return f"TiDB counts in whole seconds or in whole months, and {after} is neither"
    if every(policy) is None:
        return f"TiDB runs jobs every so many minutes, and not at {policy.job_cron or policy.job_interval}"
    return _why_not_column(table, policy) or _why_not_parameters(policy)


def _why_not_column(table: Table, policy: Policy) -> str | None:
    column = table.column(policy.column or "")
    if column is None or column.type.lower().split("(")[0].split()[0] in TIME_TYPES:
        return None
    return f"TiDB reads DATE, DATETIME and TIMESTAMP, and column {column.name} is {column.type}"


def _why_not_parameters(policy: Policy) -> str | None:
    unknown = sorted(_given(policy) - _EXPRESSED - _OF_LAPSE - _WITHOUT_EFFECT)
    return f"TiDB has nothing like ttl_{unknown[0]} for one table" if unknown else None


def without_effect(policy: Policy) -> list[str]:
    return [f"ttl_{name} has no effect here" for name in sorted(_given(policy) & _WITHOUT_EFFECT)]


def _given(policy: Policy) -> set[str]:
    return {field.name for field in fields(policy) if getattr(policy, field.name) != field.default}


def _as_mysql(after: Interval) -> str:
    try:
        return after.to_mysql()
    except InvalidValue:
        return "INTERVAL 30 DAY"


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
