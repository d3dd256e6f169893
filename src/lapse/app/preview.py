"""What a run would do, found with the very condition and clock that the run uses. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from lapse.app.forecast import FORECAST_DAYS, Forecast, Forecaster
from lapse.app.pace import Pace
from lapse.engines.base import Advice, Declared, Engine, Survey, Target
from lapse.model.interval import Interval
from lapse.model.job import Path
from lapse.model.policy import Policy
from lapse.model.table import Reference, TableName

SAMPLE_ROWS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Children:
    """A foreign key that points at the table; `per_row` is how many rows refer to one of its rows, roughly."""

    reference: Reference
    per_row: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """`condition` is the SQL that decides; `seconds` is how long the run takes at the pace of the last ones."""

    table: TableName
    policy: Policy
    cutoff: datetime
    survey: Survey
    path: Path
    condition: str
    sample: tuple[Mapping[str, object], ...]
    children: tuple[Children, ...]
    advice: tuple[Advice, ...]
    forecast: Forecast
    seconds: float | None

    @property
    def references(self) -> tuple[Reference, ...]:
        return tuple(child.reference for child in self.children)


def preview(
    engine: Engine,
    connection: Connection,
    declared: Declared,
    *,
    exact: bool,
    pace: Pace | None = None,
    ttl: Interval | None = None,
    days: int = FORECAST_DAYS,
) -> Preview:
    """Of one physical table. With `ttl`, only the forecast is about that TTL: the run still obeys the policy."""
    cutoff = engine.now(connection)
    path = engine.choose_path(connection, declared, cutoff)
    target = Target(declared=declared, cutoff=cutoff, path=path)
    forecast, found = Forecaster(engine, [declared], days=days, ttl=ttl).look(connection, exact=exact)
    if ttl is not None and not found.exact:
        found = engine.expiring(connection, declared, [cutoff], exact=False)
    survey = engine.survey(connection, target) if found.exact else found.as_survey()
    if found.exact and not survey.exact:
        survey = found.as_survey()
    return Preview(
        table=declared.table.name,
        policy=declared.policy,
        cutoff=cutoff,
        survey=survey,
        path=path,
        condition=engine.condition(connection, declared, cutoff),
        sample=tuple(engine.sample(connection, target, SAMPLE_ROWS)),
        children=tuple(_children(engine, connection, declared.table.referenced_by, survey.rows)),
        advice=tuple(engine.advice(connection, declared)),
        forecast=forecast,
        seconds=None if pace is None else pace.seconds_for(survey.expired),
    )


def _children(engine: Engine, connection: Connection, references: Sequence[Reference], rows: int) -> Sequence[Children]:
    found = []
    for reference in references:
        count = engine.estimate_rows(connection, engine.describe(connection, reference.table))
        found.append(Children(reference=reference, per_row=count / rows if rows else None))
    return found
