"""What one table's TTL is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from lapse.errors import PolicyConflict
from lapse.model import interval, parameters
from lapse.model.interval import DAY, MINUTE, Interval
from lapse.model.keep_last import KeepLast
from lapse.model.table import MANAGED_COLUMN, TimeFormat

DEFAULT_DELETE_WITHIN = Interval(micros=DAY)
DEFAULT_GRACE = Interval(micros=10 * MINUTE)
_SOME_DAY = datetime(2024, 1, 31, tzinfo=UTC)
"""Intervals with months are compared from here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnExpiry:
    """A row expires at `column + after`."""

    column: str
    after: Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpressionExpiry:
    """A row expires at the value of `text`, an expression over its own columns."""

    text: str


Expiry = ColumnExpiry | ExpressionExpiry
"""The managed column is a column like any other once it is there: `crdb_internal_expiration + 0`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionRule:
    """MyRocks's per-partition TTL: another duration, and perhaps another column, for one partition."""

    partition: str
    after: Interval
    column: str | None = None


PAUSED_BY_POLICY = "ttl_pause is on"


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Valid once built: it says when rows expire, and its parameters do not contradict each other.

    Of `expire_after` (the managed column), `expression` and `column` at least one is set. `expire_after` may stand
    beside one of the others, which then decides while the managed column is kept up to date. None is unset.
    """

    expire_after: Interval | None = None
    renew_every: Interval | None = None
    expression: str | None = None
    column: str | None = None
    interval: Interval | None = None
    filter: str | None = None
    keep_last: KeepLast | None = None
    select_batch_size: int | None = None
    delete_batch_size: int | None = None
    select_rate_limit: int | None = None
    delete_rate_limit: int | None = None
    row_stats_poll_interval: Interval | None = None
    pause: bool = False
    job_cron: str | None = None
    job_interval: Interval | None = None
    label_metrics: bool = False
    select_as_of_system_time: Interval | None = None
    adaptive: bool = True
    time_zone: str | None = None
    time_format: TimeFormat | None = None
    hide_expired: str = "off"
    partition_drop: bool = False
    replication_origin: str | None = None
    archive: str | None = None
    archive_keep: Interval | None = None
    ledger_keys: bool = False
    delete_within: Interval = DEFAULT_DELETE_WITHIN
    guard: bool = True
    grace: Interval = DEFAULT_GRACE
    partitions: tuple[PartitionRule, ...] = ()

    def __post_init__(self) -> None:
        if self.expire_after is None and self.expression is None and self.column is None:
            raise PolicyConflict(
                "the policy does not say when rows expire",
                hint='"ttl_expire_after", "ttl_expiration_expression" or TTL = column + INTERVAL must be set',
            )
        if self.expression is not None and self.column is not None:
            raise PolicyConflict("both an expiration expression and TTL = column + INTERVAL are set; keep one")
        if (self.column is None) != (self.interval is None):
            raise PolicyConflict("TTL needs a column and an interval")
        if self.job_cron is not None and self.job_interval is not None:
            raise PolicyConflict("both ttl_job_cron and TTL_JOB_INTERVAL are set; keep one")
        if self.archive_keep is not None and self.archive is None:
            raise PolicyConflict(
                "ttl_archive_keep says how long archived rows are kept, and ttl_archive is not set",
                hint="SET (ttl_archive = 'table:'), or RESET (ttl_archive_keep)",
            )
        if self.renew_every is not None:
            self._check_renewal(self.renew_every)

    def _check_renewal(self, every: Interval) -> None:
        hint = "RESET (ttl_renew_every) renews a row with every update"
        if self.expire_after is None:
            raise PolicyConflict("ttl_renew_every is about ttl_expire_after, which is not set", hint=hint)
        if any(rule.column is None for rule in self.partitions):
            raise PolicyConflict("ttl_renew_every cannot be set beside durations of single partitions", hint=hint)
        if every.added_to(_SOME_DAY) >= self.expire_after.added_to(_SOME_DAY):
            raise PolicyConflict("ttl_renew_every must be shorter than ttl_expire_after", hint=hint)

    @property
    def expiry(self) -> Expiry:
        if self.expression is not None:
            return ExpressionExpiry(text=self.expression)
        if self.column is not None and self.interval is not None:
            return ColumnExpiry(column=self.column, after=self.interval)
        return ColumnExpiry(column=MANAGED_COLUMN, after=Interval())

    @property
    def row_by_row(self) -> bool:
        """Is each row needed when it goes: to be archived, or for its key?"""
        return self.archive is not None or self.ledger_keys

    @property
    def zone(self) -> str:
        """Where wall-clock times are read."""
        return self.time_zone or "UTC"

    def for_partition(self, partition: str) -> Policy:
        """The policy of one partition, its own rule applied."""
        rule = next((r for r in self.partitions if r.partition == partition), None)
        if rule is None:
            return self
        if rule.column is None and self.column is None:
            # The table stamps its own duration, so the partition's rows live for what is left of theirs.
            stamped = self.expire_after.micros if self.expire_after is not None else 0
            left = Interval(micros=max(0, rule.after.micros - stamped))
            return replace(
                self, expire_after=rule.after, column=MANAGED_COLUMN, interval=left, expression=None, partitions=()
            )
        return replace(self, column=rule.column or self.column, interval=rule.after, expression=None, partitions=())

    def same_expiry(self, other: Policy) -> bool:
        """Do both delete the same rows at the same time? Parameters may differ."""
        return self._decisive == other._decisive

    @property
    def _decisive(self) -> tuple[object, ...]:
        """What decides which rows are deleted, and when."""
        which = (self.filter, self.keep_last, self.partitions)
        return (self.expiry, self.expire_after, self.zone, self.time_format, *which)

    def may_expire_sooner_than(self, other: Policy) -> bool:
        """May a row expire by this policy that would still live by the other?"""
        if self.same_expiry(other):
            return False
        mine, others = self.expiry, other.expiry
        if not (isinstance(mine, ColumnExpiry) and isinstance(others, ColumnExpiry)) or mine.column != others.column:
            return True
        like_mine = replace(other, column=mine.column, interval=mine.after, expire_after=self.expire_after)
        if not self.same_expiry(like_mine) or mine.column == MANAGED_COLUMN:
            return True
        return mine.after.added_to(_SOME_DAY) < others.after.added_to(_SOME_DAY)

    def to_json(self) -> str:
        """Only what differs from the defaults, as text a person can read."""
        return json.dumps(self.options(), sort_keys=True)

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if field.name == "partitions":
                options[field.name] = [[rule.partition, str(rule.after), rule.column] for rule in value]
            else:
                options[field.name] = parameters.write(value)
        return options

    @classmethod
    def from_json(cls, text: str) -> Policy:
        values: dict[str, Any] = {}
        for name, value in json.loads(text).items():
            if name == "partitions":
                values[name] = tuple(
                    PartitionRule(partition=part, after=interval.parse(after), column=column)
                    for part, after, column in value
                )
            elif name == "interval":
                values[name] = interval.parse(value)
            elif name == "column":
                values[name] = value
            else:
                values[name] = _PARAMETER_OF_FIELD[name].parse(value, name)
        return cls(**values)


_PARAMETER_OF_FIELD = {parameter.field: parameter for parameter in parameters.PARAMETERS.values() if parameter.field}

_EXCLUSIVE = {
    "expression": ("column", "interval"),
    "column": ("expression",),
    "job_cron": ("job_interval",),
    "job_interval": ("job_cron",),
}
"""Setting one of these replaces the others, as they say the same thing in another way."""


PAUSED_BY_POLICY = "ttl_pause is on"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyChange:
    """What a statement does to a policy: values to set, fields to reset, or the removal of everything.

    `comment` is the table's comment where that, and nothing else, says it: the policy then follows the comment.
    """

    set: Mapping[str, Any]
    reset: frozenset[str] = frozenset()
    remove: bool = False
    notices: tuple[str, ...] = ()
    comment: str | None = None

    def apply_to(self, policy: Policy | None, table: str) -> Policy | None:
        """The policy afterwards; None when nothing is left of it."""
        if self.remove:
            return None
        if policy is None and not any(name in self.set for name in ("expire_after", "expression", "column")):
            names = ", ".join(
                sorted({*(_parameter_name(f) for f in self.set), *(_parameter_name(f) for f in self.reset)})
            )
            raise PolicyConflict(
                f"table {table} has no TTL, so {names or 'ttl'} cannot be set",
                hint='"ttl_expire_after", "ttl_expiration_expression" or TTL = column + INTERVAL must be set first',
            )
        values = {f.name: getattr(policy, f.name) for f in fields(Policy)} if policy else {}
        defaults = {f.name: f.default for f in fields(Policy)}
        for name in self.reset:
            values[name] = defaults[name]
        for name, value in self.set.items():
            for other in _EXCLUSIVE.get(name, ()):
                if other not in self.set:
                    values[other] = defaults[other]
            values[name] = value
        return Policy(**values)


def removed_by_reset(names: Iterable[str]) -> frozenset[str]:
    """Policy fields that `RESET (name, …)` sets back."""
    fields_to_reset: set[str] = set()
    for name in names:
        parameter = parameters.find(name)
        if parameter.field == "expression":
            fields_to_reset |= {"expression", "column", "interval"}
        elif parameter.field:
            fields_to_reset.add(parameter.field)
    return frozenset(fields_to_reset)


def _parameter_name(field: str) -> str:
    parameter = _PARAMETER_OF_FIELD.get(field)
    return parameter.name if parameter else "ttl"
