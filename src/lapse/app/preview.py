"""What a run would do, found with the very condition and clock that the run uses. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from lapse.app.forecast import FORECAST_DAYS, Forecast, Forecaster
from lapse.app.pace import ExpectedPace
from lapse.engines.base import Advice, BoundPolicy, Consequences, Engine, Survey, Target, Touched
from lapse.errors import LapseError
from lapse.model.interval import Interval
from lapse.model.job import Path
from lapse.model.policy import Policy
from lapse.model.table import Reference, TableName

SAMPLE_ROWS = 5
LOOK_SECONDS = 2.0
"""How long examples and foreign keys are looked for, unless everything is to be counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Children:
    """A foreign key that points at the table; `per_row` is how many rows refer to one of its rows, roughly."""

    reference: Reference
    per_row: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """What a run would do to one or more physical tables, in numbers: `deleted` and `held` are the `expired` rows.

    `exact` is about rows and expired rows, `followed` about what foreign keys make of them.
    """

    rows: int
    expired: int
    held: int
    holders: tuple[TableName, ...]
    touched: tuple[Touched, ...]
    exact: bool
    followed: bool
    unknown: tuple[TableName, ...]
    bytes: int | None

    @property
    def deleted(self) -> int:
        """Expired rows that nothing holds."""
        return self.expired - self.held

    def __str__(self) -> str:
        """The preview in one line."""
        about = "" if self.exact and (self.followed or not self.held) else "about "
        share = f" ({self.deleted / self.rows:.0%})" if self.rows else ""
        return f"would delete {about}{self.deleted:,} of {self.rows:,} {'row' if self.rows == 1 else 'rows'}{share}"


def outlook(surveys: Sequence[Survey], consequences: Sequence[Consequences]) -> Outlook:
    """All of them together."""
    deleted: Counter[TableName] = Counter()
    unset: Counter[TableName] = Counter()
    for each in consequences:
        for touched in each.touched:
            deleted[touched.table] += touched.deleted
            unset[touched.table] += touched.unset
    expired, held = sum(survey.expired for survey in surveys), sum(each.held for each in consequences)
    sizes = [survey.bytes for survey in surveys if survey.bytes is not None]
    size = sum(sizes) if len(sizes) == len(surveys) else None
    return Outlook(
        rows=sum(survey.rows for survey in surveys),
        expired=expired,
        held=held,
        holders=_distinct(name for each in consequences for name in each.holders),
        touched=tuple(Touched(table=name, deleted=deleted[name], unset=unset[name]) for name in _distinct(deleted)),
        exact=all(survey.exact for survey in surveys),
        followed=all(each.exact for each in consequences),
        unknown=_distinct(name for each in consequences for name in each.unknown),
        bytes=size * (expired - held) // expired if size is not None and expired else size,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """Of one physical table. `condition` is the SQL that decides; `seconds` is how long the run takes at the pace of
    the last ones. `is_candidate` says that the policy is not the table's own but one to try. Workers delete nothing
    before `grace_until`. `note` is what else to know.
    """

    table: TableName
    policy: Policy
    cutoff: datetime
    survey: Survey
    path: Path
    condition: str
    sample: tuple[Mapping[str, object], ...]
    children: tuple[Children, ...]
    consequences: Consequences
    advice: tuple[Advice, ...]
    forecast: Forecast
    seconds: float | None
    is_candidate: bool = False
    grace_until: datetime | None = None
    note: str | None = None

    @property
    def references(self) -> tuple[Reference, ...]:
        return tuple(child.reference for child in self.children)

    @property
    def outlook(self) -> Outlook:
        return outlook([self.survey], [self.consequences])


def preview(
    engine: Engine,
    connection: Connection,
    declared: BoundPolicy,
    *,
    exact: bool,
    pace: ExpectedPace | None = None,
    ttl: Interval | None = None,
    days: int = FORECAST_DAYS,
    is_candidate: bool = False,
    grace_until: datetime | None = None,
) -> Preview:
    """Of one physical table. With `ttl`, only the forecast is about that TTL: the run still obeys the policy."""
    cutoff = engine.now(connection)
    target = engine.target(connection, declared, cutoff)
    forecast, found = Forecaster(engine, [declared], days=days, ttl=ttl).look(connection, exact=exact)
    if ttl is not None and not found.exact:
        found = engine.expiring(connection, declared, [cutoff], exact=False)
    survey = engine.survey(connection, target) if found.exact else found.as_survey()
    if found.exact and not survey.exact:
        survey = found.as_survey()
    consequences = follow(engine, connection, target, survey.expired, None if exact else LOOK_SECONDS)
    deleted = survey.expired - consequences.held
    return Preview(
        table=declared.table.name,
        policy=declared.policy,
        cutoff=cutoff,
        survey=survey,
        path=target.path,
        condition=target.condition.sql,
        sample=_sample(engine, connection, target, exact=exact) if survey.expired else (),
        children=tuple(_children(engine, connection, declared.table.referenced_by, survey.rows)),
        consequences=consequences,
        advice=tuple(engine.advice(connection, declared)),
        forecast=forecast,
        seconds=None if pace is None else pace.seconds_for(deleted),
        is_candidate=is_candidate,
        grace_until=grace_until if grace_until is not None and cutoff < grace_until else None,
    )


def follow(engine: Engine, connection: Connection, target: Target, expired: int, seconds: float | None) -> Consequences:
    """What foreign keys make of it; unknown where that takes too long or may not be seen."""
    references = target.declared.table.referenced_by
    if not references or not expired:
        return Consequences()
    try:
        with nullcontext() if seconds is None else engine.limited(connection, seconds):
            return engine.consequences(connection, target, expired, seconds)
    except LapseError:
        if seconds is None:
            raise
        return Consequences(exact=False, unknown=_distinct(reference.table for reference in references))


def _sample(engine: Engine, connection: Connection, target: Target, *, exact: bool) -> tuple[Mapping[str, object], ...]:
    """Examples are not worth a long look."""
    try:
        with nullcontext() if exact else engine.limited(connection, LOOK_SECONDS):
            return tuple(engine.sample(connection, target, SAMPLE_ROWS))
    except LapseError:
        if exact:
            raise
        return ()


def _children(engine: Engine, connection: Connection, references: Sequence[Reference], rows: int) -> Sequence[Children]:
    found = []
    for reference in references:
        count = engine.estimate_rows(connection, engine.describe(connection, reference.table))
        found.append(Children(reference=reference, per_row=count / rows if rows else None))
    return found


def _distinct(names: Iterable[TableName]) -> tuple[TableName, ...]:
    return tuple(sorted(set(names), key=str))
