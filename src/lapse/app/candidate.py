"""A policy to try before it is declared: what it would do to a table that need not have one. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from lapse.app.forecast import DAY, FORECAST_DAYS, Forecast, ForecastDay
from lapse.app.preview import LOOK_SECONDS, Preview, preview
from lapse.engines.base import BoundPolicy, Consequences, Engine, Survey
from lapse.errors import Interrupted, InvalidValue, NotFound, TooSlow, UsageError, ZoneMissing
from lapse.model import interval, parameters
from lapse.model.hold import HeldTerm
from lapse.model.interval import Interval
from lapse.model.job import Path, PathKind
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Table, TableName
from lapse.runner.policy_manager import bind, policy_leaves

HOW = "--column created_at --after '30 days', --after '30 days', or --expression EXPR"
"""What a candidate is made of, on the command line; the same names in Python."""
BY_SIZE = "the size of the table"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """`column` plus `after`, `after` since the last change of a row, or an `expression`."""

    column: str | None = None
    after: Interval | None = None
    expression: str | None = None
    time_zone: str | None = None

    @classmethod
    def read(
        cls,
        *,
        column: str | None,
        after: str | None,
        ttl: str | None,
        expression: str | None,
        time_zone: str | None,
    ) -> Candidate | None:
        """None where there is nothing to try; `ttl` alone is no candidate, but another word for `after` beside one."""
        if column is None and after is None and expression is None:
            if time_zone is not None:
                raise UsageError("a time zone alone is no policy to try", hint=HOW)
            return None
        if after is not None and ttl is not None:
            raise UsageError("--after and --ttl are mutually exclusive here: they say the same")
        if expression is not None and (column is not None or after is not None or ttl is not None):
            raise UsageError("an expression says by itself when rows expire: leave --column, --after and --ttl out")
        duration = after or ttl
        zone = None if time_zone is None else str(parameters.find("ttl_time_zone").parse(time_zone, "--time-zone"))
        return cls(
            column=column,
            after=None if duration is None else _positive(duration),
            expression=expression,
            time_zone=zone,
        )

    def policy(self, present: Policy | None, table: TableName) -> Policy:
        """In place of what the table has now, whose other parameters stay."""
        base = present or Policy(expire_after=Interval(micros=1))
        if self.time_zone is not None:
            base = replace(base, time_zone=self.time_zone)
        if self.expression is not None:
            return replace(base, expire_after=None, expression=self.expression, column=None, interval=None)
        if self.column is not None:
            after = self.after or Interval()
            return replace(base, expire_after=None, expression=None, column=self.column, interval=after)
        if present is not None and present.expression is not None:
            raise UsageError(
                f"rows of table {table} expire by an expression, so a duration alone is no policy to try", hint=HOW
            )
        if present is not None and present.column is not None:
            return replace(base, interval=self.after, partitions=())
        return replace(base, expire_after=self.after, partitions=())


def _positive(text: str) -> Interval:
    found = interval.parse(text, name="--after")
    if not found:
        raise InvalidValue("--after", text, "must be longer than zero")
    return found


def no_policy(table: TableName) -> NotFound:
    return NotFound(f"table {table} has no TTL policy", hint=f"try one before it is declared: {HOW}")


def previews(
    engine: Engine,
    connection: Connection,
    table: Table,
    candidate: Candidate,
    *,
    present: Policy | None,
    others: Collection[TableName],
    holds: Sequence[HeldTerm] = (),
    exact: bool,
) -> list[Preview]:
    """One for each physical table; `others` have policies of their own."""
    policy = candidate.policy(present, table.name)
    declared = bind(table, policy, holds)
    # What a declaration refuses is refused here; but to read a large table for that takes long.
    try:
        with suppress(TooSlow, Interrupted), engine.limited(connection, LOOK_SECONDS):
            engine.check(connection, declared, present)
    except ZoneMissing as error:
        zone = error.zone or "Area/City"
        hint = f"try it with --time-zone {zone}, or with --time-zone UTC if they are in UTC"
        raise ZoneMissing(error.message, zone=error.zone, hint=hint) from None
    if policy.column is None and policy.expression is None and table.column(MANAGED_COLUMN) is None:
        return [_with_new_column(engine, connection, declared)]
    found = []
    for name in policy_leaves(engine, connection, table, lambda: others):
        leaf = engine.leaf(connection, table, name) if name.partition is not None else table
        if leaf is not None:
            own = policy if name.partition is None else policy.for_partition(name.partition)
            part = replace(declared, table=leaf, policy=own)
            found.append(preview(engine, connection, part, exact=exact, is_candidate=True))
    return found


def _with_new_column(engine: Engine, connection: Connection, declared: BoundPolicy) -> Preview:
    """A managed column that is not there yet: every row gets the whole TTL when it is added."""
    table, after = declared.table, declared.policy.expire_after
    assert after is not None
    now, rows = engine.now(connection), engine.estimate_rows(connection, table)
    at = after.added_to(now)
    return Preview(
        table=table.name,
        policy=declared.policy,
        cutoff=now,
        survey=Survey(rows=rows, expired=0, oldest=None, newest=None, bytes=0, exact=False, method=BY_SIZE),
        path=Path(kind=PathKind.PHYSICAL, evidence="nothing has expired"),
        condition=f"{MANAGED_COLUMN} has passed",
        sample=(),
        children=(),
        consequences=Consequences(),
        advice=(),
        forecast=_all_at_once(declared, rows, now, at),
        seconds=None,
        is_candidate=True,
        note=f"declaring it adds the column {MANAGED_COLUMN} and deletes nothing now: the rows that are there expire"
        f" {after} after that, at {at:%Y-%m-%d %H:%M} UTC if it is declared now, unless they are updated before",
    )


def _all_at_once(declared: BoundPolicy, rows: int, now: datetime, at: datetime) -> Forecast:
    def expires_on(number: int) -> bool:
        return timedelta(0) < at - (now + DAY * number) <= DAY

    return Forecast(
        table=declared.table.name,
        policy=declared.policy,
        at=now,
        ttl=None,
        rows=rows,
        bytes=None,
        expired=0,
        days=tuple(
            ForecastDay(
                start=now + DAY * number,
                end=now + DAY * (number + 1),
                rows=rows if expires_on(number) else 0,
                bytes=None,
            )
            for number in range(FORECAST_DAYS)
        ),
        steady=None,
        exact=False,
        method=BY_SIZE,
        margin=0,
    )
