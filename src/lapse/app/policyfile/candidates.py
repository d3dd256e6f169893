"""Tables that might want a TTL: known by their name, or by a column that says when a row expires or came to be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from lapse.app.policyfile.presets import preset_for
from lapse.app.policyfile.reading import knob_fields
from lapse.engines.base import Engine
from lapse.errors import LapseError
from lapse.model import interval
from lapse.model.policy import PolicyChange
from lapse.model.table import Table, TableName
from lapse.runner import declared as declaring

EXPIRES = re.compile(r"(expir\w*|valid_(until|to)|delete_after|purge_(at|after))", re.IGNORECASE)
ARRIVED = re.compile(
    r"(created|inserted|logged|occurred|received|sent|recorded|finished|completed|processed)(_?(at|on|time|date))?"
    r"|timestamp|ts|event_time|date_done|last_(seen|activity|used)\w*",
    re.IGNORECASE,
)
KEPT = "90 days"
"""A first proposal for rows that say when they came: long enough to be argued down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """`keys` are what the file would say, empty where nothing in the table tells time; `why` is for people."""

    table: TableName
    rows: int
    keys: Mapping[str, str]
    why: str
    indexed: bool


def find_candidate(engine: Engine, connection: Connection, name: TableName) -> Candidate:
    table = engine.describe(connection, name)
    rows = engine.estimate_rows(connection, table)
    for keys, why in _proposals(table):
        column = keys.get("column") or keys.get("ttl_expiration_expression", "")
        try:
            policy = PolicyChange(set=_fields(keys)).apply_to(None, str(name))
            assert policy is not None
            engine.check(connection, declaring.declare(table, policy), None)
        except LapseError:
            # The column only has the name of a time; the next may be one.
            continue
        indexed = table.index_on(column) is not None
        return Candidate(table=table.name, rows=rows, keys=keys, why=why, indexed=indexed)
    return Candidate(table=table.name, rows=rows, keys={}, why="no column tells when a row expires", indexed=False)


def _proposals(table: Table) -> Iterator[tuple[Mapping[str, str], str]]:
    preset = preset_for(table)
    if preset is not None:
        yield preset.keys, preset.title
    names = [column.name for column in table.columns]
    for name in (name for name in names if EXPIRES.fullmatch(name)):
        yield {"ttl_expiration_expression": name}, f"column {name} says when a row expires"
    for name in (name for name in names if ARRIVED.fullmatch(name)):
        yield {"column": name, "after": KEPT}, f"column {name} says when a row came"


def _fields(keys: Mapping[str, str]) -> dict[str, object]:
    if "column" in keys:
        return {"column": keys["column"], "interval": interval.parse(keys["after"])}
    return knob_fields("ttl_expiration_expression", keys["ttl_expiration_expression"])
