"""Tables that might want a TTL: known by their name, or by a column that says when a row expires or came to be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from lapse.app.policyfile.presets import preset_for
from lapse.app.policyfile.reading import entry_from_keys, file_keys
from lapse.ddl import parse_comment_policy
from lapse.engines.base import Engine
from lapse.errors import LapseError
from lapse.model.policy import PolicyChange
from lapse.model.table import Table, TableName
from lapse.runner.policy_manager import bind

EXPIRES = re.compile(r"(expir\w*|valid_(until|to)|delete_after|purge_(at|after))", re.IGNORECASE)
ARRIVED = re.compile(
    r"(created|inserted|logged|occurred|received|sent|recorded|finished|completed|processed)(_?(at|on|time|date))?"
    r"|timestamp|ts|at|event_time|date_done|last_(seen|activity|used)\w*",
    re.IGNORECASE,
)
NAMES_SHOWN = 3
KEPT = "90 days"
"""A first proposal for rows that say when they came: long enough to be argued down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuggestedPolicy:
    """`keys` are what the file would say, empty where nothing in the table tells time; `why` is for people."""

    table: TableName
    rows: int
    keys: Mapping[str, str]
    why: str
    indexed: bool


def find_candidate(engine: Engine, connection: Connection, name: TableName) -> SuggestedPolicy:
    table = engine.describe(connection, name)
    rows = engine.estimate_rows(connection, table)
    for keys, why in _proposals(table, engine.range_column(connection, table)):
        column = keys.get("column") or keys.get("ttl_expiration_expression", "")
        try:
            policy = entry_from_keys(str(name), keys, place=str(name)).policy
            assert policy is not None
            engine.check(connection, bind(table, policy), None)
        except LapseError:
            # The column only has the name of a time; the next may be one.
            continue
        indexed = table.index_on(column) is not None or "ttl_partition_drop" in keys
        return SuggestedPolicy(table=table.name, rows=rows, keys=keys, why=why, indexed=indexed)
    why = _why_kept(table) or "no column tells when a row expires"
    return SuggestedPolicy(table=table.name, rows=rows, keys={}, why=why, indexed=False)


def _why_kept(table: Table) -> str | None:
    """Rows that others refer to are kept by them, or take them along: nothing in the table says that they are old."""
    others = sorted({str(each.table) for each in table.referenced_by if each.table.whole != table.name})
    if not others:
        return None
    shown = ", ".join(others[:NAMES_SHOWN]) + (f" and {len(others) - NAMES_SHOWN} more" if others[NAMES_SHOWN:] else "")
    return f"rows of {shown} refer to its rows"


def _proposals(table: Table, range_column: str | None) -> Iterator[tuple[Mapping[str, str], str]]:
    declared = _declared_by_comment(table)
    if declared is not None:
        yield declared, "its comment declares this"
        return
    preset = preset_for(table)
    if preset is not None:
        yield preset.keys, preset.title
    names = [column.name for column in table.columns]
    for name in (name for name in names if EXPIRES.fullmatch(name)):
        yield {"ttl_expiration_expression": name}, f"column {name} says when a row expires"
    if _why_kept(table) is not None:
        return
    if range_column is not None:
        keys = {"column": range_column, "after": KEPT, "ttl_partition_drop": "on"}
        yield keys, f"partitioned by {range_column}: whole partitions are dropped"
    for name in (name for name in names if ARRIVED.fullmatch(name)):
        yield {"column": name, "after": KEPT}, f"column {name} says when a row came"


def _declared_by_comment(table: Table) -> Mapping[str, str] | None:
    try:
        fields = parse_comment_policy(table.comment or "")
        policy = None if fields is None else PolicyChange(set=fields).apply_to(None, str(table.name))
    except LapseError:
        return None
    return None if policy is None else file_keys(policy)
