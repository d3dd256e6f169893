"""The condition that is true for expired rows and for no other, for jobs, previews, the live view and row security."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from zoneinfo import ZoneInfo

from lapse.engines import condition as shared
from lapse.engines import keep_last
from lapse.engines.base import BoundPolicy
from lapse.engines.plausible import BANDS, EARLIEST
from lapse.engines.postgres.expression import (
    INSTANT,
    NUMBERS,
    UNITS_PER_SECOND,
    WALL_CLOCKS,
    Writer,
    base_type,
    from_number,
)
from lapse.engines.postgres.names import quote, relation
from lapse.engines.postgres.times import instant, operation, shifted, stamp
from lapse.engines.walltime import expired_wall_clock
from lapse.errors import Drift, Unsupported
from lapse.model.expression import Binary, ColumnRef, Span
from lapse.model.interval import Interval
from lapse.model.policy import ColumnExpiry
from lapse.model.table import Column, TimeFormat

_EPOCH = datetime.fromtimestamp(0, UTC)
_NOW = "pg_catalog.now()"
_BOUND, _MOMENT = "\0bound\0", "\0moment\0"
"""Stand for what a template is filled with: no name and no literal has a zero byte."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition(shared.Condition):
    """`threshold` is what `column` is compared with; both are None for expressions. `instant` is SQL for a row's
    expiry."""

    instant: str
    column: str | None = None
    threshold: str | None = None

    @property
    def unindexed(self) -> str:
        """The same, in a form that no index can serve: the scan keeps to physical order."""
        return f"({self.sql}) IS TRUE"


def own(found: shared.Condition) -> Condition:
    """A condition that this engine has compiled."""
    assert isinstance(found, Condition)
    return found


def at(declared: BoundPolicy, cutoff: datetime) -> Condition:
    """The condition of a job with this cutoff."""
    now = instant(cutoff)
    writer = _writer(declared, now)
    held = (writer.held(each) for each in declared.holds_at(cutoff))
    found = _expired(declared, cutoff).requiring(*_required(declared, now)).but_not(*held)
    return replace(found, surplus=_surplus(declared))


def _required(declared: BoundPolicy, now: str) -> tuple[str, ...]:
    writer = _writer(declared, now)
    return tuple(writer.truth(node, what) for what, node in declared.required)


def _surplus(declared: BoundPolicy) -> str:
    """True for rows that `ttl_keep_last` does not keep; nothing where the policy has none."""
    kept = require_kept(declared)
    if kept is None:
        return ""
    rows = f"ONLY {relation(declared.table.name)}"
    return keep_last.surplus(kept, source=rows, quote=quote, equal=_equal, less=_less)


def lasting_surplus(declared: BoundPolicy, row: str) -> str:
    """The same for the DELETE of a batch, in which the table is called `row`: the rows that are kept instead are
    locked, so that they are there, and the last ones, until the batch is committed."""
    kept = keep_last.kept(declared)
    assert kept is not None
    table = f"ONLY {relation(declared.table.name)} AS lapse_last"
    last = keep_last.lasting(kept, row=row, table=table, quote=quote, equal=_equal)
    order = ", ".join(quote(name) for name in kept.order)
    # A row that was changed a moment ago is locked as it is now, so they may come in another order.
    nth = (
        f"(SELECT {order} FROM ({last} LIMIT {kept.rows} FOR SHARE SKIP LOCKED) AS lapse_last"
        f" ORDER BY {', '.join(f'{quote(name)} DESC' for name in kept.order)} LIMIT 1 OFFSET {kept.rows - 1})"
    )
    return " AND " + _less(f"({', '.join(f'{row}.{quote(name)}' for name in kept.order)})", nth)


def require_kept(declared: BoundPolicy) -> keep_last.Kept | None:
    kept = keep_last.kept(declared)
    if kept is None:
        return None
    for name in kept.index_columns:
        column = declared.table.column(name)
        if column is not None and column.custom:
            raise Unsupported(
                f"column {name} of table {declared.table.name} has the type {column.type}, which is not PostgreSQL's"
                " own, so ttl_keep_last cannot compare it"
            )
    if kept.index is None:
        columns = ", ".join(quote(name) for name in kept.index_columns)
        raise keep_last.missing_index(
            kept, f"CREATE INDEX CONCURRENTLY ON {relation(declared.table.name)} ({columns});"
        )
    return kept


def _equal(one: str, other: str) -> str:
    return operation("=", one, other)


def _less(one: str, other: str) -> str:
    return operation("<", one, other)


def _not_held(declared: BoundPolicy) -> tuple[str, ...]:
    """In a template, where only the call tells the time."""
    writer, terms = _writer(declared, _MOMENT), []
    for each in declared.holds:
        until = "" if each.until is None else f" AND {operation('<', _MOMENT, instant(each.until))}"
        terms.append(f"({writer.held(each)}{until})")
    return (shared.none_of(terms),) if terms else ()


def _expired(declared: BoundPolicy, cutoff: datetime) -> Condition:
    expiry = declared.policy.expiry
    if not isinstance(expiry, ColumnExpiry):
        return _expression(declared, instant(cutoff))
    column = _time_column(declared, expiry.column)
    name, kind = quote(column.name), base_type(column)
    value = threshold(declared, cutoff)
    written = str(value) if kind in NUMBERS else _moment(kind, str(value))
    return Condition(
        expired=f"({operation('>=', name, _earliest(declared, column))} AND {operation('<=', name, written)})",
        instant=_expiry_instant(declared, column, expiry.after),
        column=column.name,
        threshold=written,
    )


def threshold(declared: BoundPolicy, cutoff: datetime) -> str | None:
    """The latest value of the expiry column that has expired at the cutoff, as its type writes it; None for
    expressions."""
    expiry = declared.policy.expiry
    if not isinstance(expiry, ColumnExpiry):
        return None
    column = _time_column(declared, expiry.column)
    kind = base_type(column)
    if kind == INSTANT:
        return stamp(expiry.after.subtracted_from(cutoff.astimezone(UTC))) + "+00"
    if kind in NUMBERS:
        since = expiry.after.subtracted_from(cutoff.astimezone(UTC)) - _EPOCH
        return str(since * _units(declared, column, expiry.after) // timedelta(seconds=1))
    wall = expired_wall_clock(cutoff, expiry.after, ZoneInfo(declared.policy.zone))
    # A date is its midnight, which has come once the wall clock shows that date.
    return stamp(wall)[:10] if kind == "date" else stamp(wall)


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """The condition at any cutoff, for a PL/pgSQL function that is given a cutoff and a threshold.

    `sql`, `strict` and `instant` are for format(): %1$L is the bound, %2$L the cutoff. `sql` believes the bound, which
    is enough for looking. `strict` does not: `bound` is PL/pgSQL for the threshold that was given, in the variable
    `bound`, if it is not later than that of the cutoff, in the variable `moment`; where that cannot be computed there,
    each row's expiry is compared with the cutoff as well.
    """

    sql: str
    strict: str
    instant: str
    bound: str
    column: str | None = None
    type: str | None = None


def template(declared: BoundPolicy) -> Template:
    expiry, required = declared.policy.expiry, [*_required(declared, _MOMENT), *_not_held(declared)]
    if declared.policy.keep_last is not None:
        required.append(_surplus(declared))
    if not isinstance(expiry, ColumnExpiry):
        found = _expression(declared, _MOMENT).requiring(*required)
        sql = _formatted(found.sql)
        return Template(sql=sql, strict=sql, instant=_formatted(found.instant), bound="bound")
    column = _time_column(declared, expiry.column)
    name, kind = quote(column.name), base_type(column)
    own = shifted("moment", expiry.after, "-")
    since = _expiry_instant(declared, column, expiry.after)
    late = ""
    if kind == INSTANT:
        type_, bound = "pg_catalog.timestamptz", f"LEAST(bound::pg_catalog.timestamptz, {own})::pg_catalog.text"
    elif kind in NUMBERS:
        units = _units(declared, column, expiry.after)
        number = f"pg_catalog.floor({operation('*', f'extract(epoch FROM {own})', str(units))})"
        type_, bound = "pg_catalog.int8", f"LEAST(bound::pg_catalog.numeric, {number})::pg_catalog.text"
    else:
        type_, bound = f"pg_catalog.{'date' if kind == 'date' else 'timestamp'}", "bound"
        late = f" AND {operation('<=', since, _MOMENT)}"
    low, high = _earliest(declared, column), f"{_BOUND}::{type_}"
    sql = " AND ".join((operation(">=", name, low), operation("<=", name, high), *required))
    return Template(
        sql=_formatted(f"({sql})"),
        strict=_formatted(f"({sql}{late})"),
        instant=_formatted(since),
        bound=bound,
        column=column.name,
        type=type_,
    )


def partition_mark(partition: str) -> str:
    """A partition's name in a form that is no SQL."""
    return sha256(partition.encode()).hexdigest()[:16]


def mark(declared: BoundPolicy) -> str:
    """Equal for policies whose conditions differ in their thresholds alone."""
    expiry = declared.policy.expiry
    if isinstance(expiry, ColumnExpiry):
        said = ["column", expiry.column, base_type(_time_column(declared, expiry.column)), declared.policy.time_format]
    else:
        said = ["expression", declared.policy.expression, declared.policy.zone, declared.policy.time_format]
    if declared.policy.filter is not None:
        said += ["filter", declared.policy.filter, declared.policy.zone]
    if declared.policy.keep_last is not None:
        said += ["keep last", str(declared.policy.keep_last), *declared.table.primary_key]
    for each in declared.holds:
        said += ["hold", each.text, None if each.until is None else each.until.isoformat(), declared.policy.zone]
    return sha256(json.dumps(said).encode()).hexdigest()[:16]


def _formatted(sql: str) -> str:
    """As a template of format()."""
    return sql.replace("%", "%%").replace(_BOUND, "%1$L").replace(_MOMENT, "%2$L::pg_catalog.timestamptz")


def _earliest(declared: BoundPolicy, column: Column) -> str:
    """What is earlier is no time."""
    kind = base_type(column)
    if kind in NUMBERS:
        expiry = declared.policy.expiry
        assert isinstance(expiry, ColumnExpiry)
        return str(BANDS[_number_format(declared, column, expiry.after)][0])
    return instant(EARLIEST) if kind == INSTANT else _moment(kind, stamp(EARLIEST))


def _moment(kind: str, text: str) -> str:
    match kind:
        case "date":
            return f"pg_catalog.date '{text[:10]}'"
        case _ if kind == INSTANT:
            return f"pg_catalog.timestamptz '{text}'"
    return f"TIMESTAMP '{text}'"


def _units(declared: BoundPolicy, column: Column, after: Interval) -> int:
    return UNITS_PER_SECOND[_number_format(declared, column, after)]


def expired_now(declared: BoundPolicy) -> str:
    """The condition at the time it is evaluated, for the live view and the row-security policy."""
    required, surplus = _required(declared, _NOW), _surplus(declared)
    return shared.Condition(expired=_expired_now(declared), required=required, surplus=surplus).sql


def _expired_now(declared: BoundPolicy) -> str:
    expiry = declared.policy.expiry
    if not isinstance(expiry, ColumnExpiry):
        return _expression(declared, _NOW).expired
    column = _time_column(declared, expiry.column)
    name, kind = quote(column.name), base_type(column)
    if kind == INSTANT:
        threshold = shifted(_NOW, expiry.after, "-")
        return f"({operation('>=', name, instant(EARLIEST))} AND {operation('<=', name, threshold)})"
    return operation("<=", _expiry_instant(declared, column, expiry.after), _NOW)


def reads_wall_clock(declared: BoundPolicy) -> bool:
    """Does the policy's zone change what expires?"""
    now = _EPOCH
    read_in = (replace(declared, policy=replace(declared.policy, time_zone=zone)) for zone in ("UTC", "Asia/Tokyo"))
    one, other = (at(each, now) for each in read_in)
    return (one.instant, one.required) != (other.instant, other.required)


def _expression(declared: BoundPolicy, now: str) -> Condition:
    assert declared.expression is not None
    found = _writer(declared, now).time(declared.expression)
    return Condition(expired=operation("<=", found, now), instant=found)


def _writer(declared: BoundPolicy, now: str) -> Writer:
    policy = declared.policy
    return Writer(
        table=declared.table,
        now=now,
        zone=policy.zone,
        format=policy.time_format,
        managed=policy.expire_after is not None,
    )


def _expiry_instant(declared: BoundPolicy, column: Column, after: Interval) -> str:
    """NULL for a row that never expires."""
    writer = replace(_writer(declared, _NOW), never=False)
    if base_type(column) in NUMBERS:
        found = from_number(writer, column, _number_format(declared, column, after))
        return shifted(found, after, "+")
    return writer.time(Binary("+", ColumnRef(column.name), Span(after)))


def _number_format(declared: BoundPolicy, column: Column, after: Interval) -> TimeFormat:
    """Seconds, as in MyRocks, unless the policy says otherwise; but a bare number is not taken for an expiry."""
    if declared.policy.time_format is None and not after:
        raise Unsupported(
            f"column {column.name} of table {declared.table.name} has the type {column.type}, which is no time",
            hint="if it holds Unix time, say so: ttl_time_format = 'unix' or 'unix_ms'",
        )
    fmt = declared.policy.time_format or TimeFormat.UNIX
    if fmt not in UNITS_PER_SECOND:
        raise Unsupported(
            f"column {column.name} has the type {column.type}, so ttl_time_format = '{fmt}' cannot be",
            hint="use 'unix' or 'unix_ms'",
        )
    return fmt


def _time_column(declared: BoundPolicy, name: str) -> Column:
    column = declared.table.column(name)
    if column is None:
        raise Drift(f"table {declared.table.name} has no column {name}, which its TTL policy reads")
    if base_type(column) not in (INSTANT, *WALL_CLOCKS, *NUMBERS):
        raise Unsupported(
            f"column {name} of table {declared.table.name} has the type {column.type}, which is no time",
            hint="use a timestamp or date column, or an expression such as to_timestamp(seconds)",
        )
    return column
