"""What a run would do, found with the very condition and clock that the run uses. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import Advice, Engine, Survey, Target
from lapse.model.job import Path
from lapse.model.policy import Policy
from lapse.model.table import Reference, TableName
from lapse.runner.jobs import JobKeeper

SAMPLE_ROWS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """`condition` is the SQL that decides; `references` are foreign keys that point at the table."""

    table: TableName
    policy: Policy
    cutoff: datetime
    survey: Survey
    path: Path
    condition: str
    sample: tuple[Mapping[str, object], ...]
    references: tuple[Reference, ...]
    advice: tuple[Advice, ...]


def preview(
    engine: Engine, keeper: JobKeeper, connection: Connection, stored: StoredPolicy, partition: str | None
) -> Preview:
    declared = keeper.declared(connection, stored, partition)
    cutoff = engine.now(connection)
    path = engine.choose_path(connection, declared, cutoff)
    target = Target(declared=declared, cutoff=cutoff, path=path)
    return Preview(
        table=TableName(stored.table.name, stored.table.schema, partition),
        policy=declared.policy,
        cutoff=cutoff,
        survey=engine.survey(connection, target),
        path=path,
        condition=engine.condition(connection, declared, cutoff),
        sample=tuple(engine.sample(connection, target, SAMPLE_ROWS)),
        references=declared.table.referenced_by,
        advice=tuple(engine.advice(connection, declared)),
    )
