"""A policy in a table's comment: `ttl_duration=60;ttl_col=ts;p1_ttl_duration=5;p1_ttl_col=c2;ttl_pause=on;`.

The grammar is MyRocks's, and it is strict: the whole comment consists of items `name=value;`, of which those that are
not about TTL are left alone. Anything else is prose, whatever words are in it, and declares nothing. This is the one
place where comments are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lapse.errors import InvalidValue
from lapse.model import parameters
from lapse.model.interval import Interval, from_seconds
from lapse.model.policy import PartitionRule

NEVER = "NULL"
"""The expression of a table on which only some partitions have TTL: no row outside them expires."""
MAX_SECONDS = 2**31

_FITTING = frozenset(
    "ttl_expire_after ttl_expiration_expression ttl_select_batch_size ttl_delete_batch_size ttl_select_rate_limit"
    " ttl_delete_rate_limit ttl_row_stats_poll_interval ttl_pause ttl_job_cron ttl_job_interval ttl_label_metrics"
    " ttl_select_as_of_system_time ttl_adaptive ttl_time_zone ttl_time_format ttl_hide_expired ttl_delete_within"
    " ttl_range_concurrency ttl_automatic_column".split()
)
"""What a comment may say. Other parameters lift a protection or reach outside the table: they take a statement."""

_ITEM = re.compile(r"\s*(?P<name>[^\s=;]+)\s*=\s*(?P<value>.*?)\s*", re.DOTALL)
_RULE = re.compile(r"(?:(?P<partition>.+)_)?ttl_(?P<what>duration|col)", re.DOTALL | re.IGNORECASE)
_QUOTED = re.compile(r"^(['\"])([^'\"]*)\1$")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommentRules:
    """`duration` is None where only partitions have TTL."""

    duration: Interval | None
    column: str | None
    partitions: tuple[PartitionRule, ...] = ()

    def fields(self) -> dict[str, Any]:
        """The rules as fields of a Policy."""
        fields: dict[str, Any] = {"partitions": self.partitions} if self.partitions else {}
        if self.duration is None:
            return {"expression": NEVER} | fields
        if self.column is None:
            return {"expire_after": self.duration} | fields
        return {"column": self.column, "interval": self.duration} | fields


@dataclass(frozen=True, kw_only=True, slots=True)
class _Item:
    name: str
    value: str
    text: str

    @property
    def is_about_ttl(self) -> bool:
        return self.name.lower().startswith("ttl_") or _RULE.fullmatch(self.name) is not None


def parse_comment_policy(text: str) -> dict[str, Any] | None:
    """Fields of the policy that a table's comment declares; None when it is just a comment.

    Raises InvalidValue for a comment that declares something which cannot be, or which no comment may say.
    """
    items = [item for item in _items(text) or () if item.is_about_ttl]
    if not items:
        return None
    seen: set[str] = set()
    for item in items:
        if item.name != _spelled(item.name):
            # MyRocks reads its own words in lower case only and says nothing about others.
            raise InvalidValue("COMMENT", item.text, f"must be written in lower case: {_spelled(item.name)}=…")
        if item.name in seen:
            # MyRocks would take the first one and say nothing.
            raise InvalidValue("COMMENT", item.text, f"may say {item.name} once only")
        seen.add(item.name)
    fields = _rule_fields([item for item in items if _RULE.fullmatch(item.name)])
    for item in items:
        if not _RULE.fullmatch(item.name):
            added = _parameter_fields(item)
            if added.keys() & fields.keys() or {"expression", "column"} <= fields.keys() | added.keys():
                raise InvalidValue("COMMENT", text, "says more than once when rows expire")
            fields |= added
    return fields


def without_policy(text: str) -> str:
    """The comment without its items about TTL; the text itself where it is just a comment."""
    items = _items(text)
    if items is None or not any(item.is_about_ttl for item in items):
        return text
    return "".join(f"{item.text};" for item in items if not item.is_about_ttl)


def write_comment(rules: CommentRules) -> str:
    """The comment that is read as these rules."""
    items: list[str] = []
    if rules.duration is not None:
        items.append(f"ttl_duration={rules.duration.to_seconds()}")
    if rules.column is not None:
        items.append(f"ttl_col={rules.column}")
    for rule in rules.partitions:
        items.append(f"{rule.partition}_ttl_duration={rule.after.to_seconds()}")
        if rule.column is not None:
            items.append(f"{rule.partition}_ttl_col={rule.column}")
    return "".join(f"{item};" for item in items)


def _items(text: str) -> list[_Item] | None:
    """None where the comment is not made of items alone."""
    found: list[_Item] = []
    for part in text.split(";"):
        if not part.strip():
            continue
        match = _ITEM.fullmatch(part)
        if match is None:
            return None
        found.append(_Item(name=match["name"], value=match["value"], text=part.strip()))
    return found


def _spelled(name: str) -> str:
    """As it must be spelled; the name of a partition as it is."""
    rule = _RULE.fullmatch(name)
    if rule is None:
        return name.lower()
    word = f"ttl_{rule['what'].lower()}"
    return name[: -len(word)] + word


def _rule_fields(items: list[_Item]) -> dict[str, Any]:
    durations: dict[str | None, Interval] = {}
    columns: dict[str | None, str] = {}
    for item in items:
        rule = _RULE.fullmatch(item.name)
        assert rule is not None
        if rule["what"] == "duration":
            durations[rule["partition"]] = _seconds(item.value)
        else:
            columns[rule["partition"]] = _column(item.value)
    return _rules(durations, columns).fields() if items else {}


def _parameter_fields(item: _Item) -> dict[str, Any]:
    parameter = parameters.find(item.name)
    if parameter.name not in _FITTING:
        raise InvalidValue(
            "COMMENT",
            item.text,
            f"may not say {parameter.name}",
            hint=f"set it by a statement: ALTER TABLE … SET ({parameter.name} = …)",
        )
    value = parameter.parse(_QUOTED.sub(r"\2", item.value), item.name)
    if parameter.field == "expression":
        return _expression_fields(value)
    return {} if parameter.field is None else {parameter.field: value}


def _expression_fields(text: str) -> dict[str, Any]:
    """`column + interval` is recognised, so that an index serves it."""
    from lapse.ddl.expression import parse_expression, recognise_column

    recognised = recognise_column(parse_expression(text, columns=None))
    if recognised is None:
        return {"expression": text}
    return {"column": recognised[0], "interval": recognised[1]}


def _rules(durations: dict[str | None, Interval], columns: dict[str | None, str]) -> CommentRules:
    for partition, column in columns.items():
        if partition not in durations:
            prefix = f"{partition}_" if partition else ""
            raise InvalidValue(f"{prefix}ttl_col", column, f"needs {prefix}ttl_duration=seconds beside it")
    partitions = tuple(
        PartitionRule(partition=partition, after=after, column=columns.get(partition))
        for partition, after in durations.items()
        if partition is not None
    )
    for rule in partitions:
        if None not in durations and rule.column is None:
            raise InvalidValue(
                f"{rule.partition}_ttl_duration",
                rule.after.to_seconds(),
                f"needs {rule.partition}_ttl_col=column, or a ttl_duration for the whole table",
            )
    return CommentRules(duration=durations.get(None), column=columns.get(None), partitions=partitions)


def _seconds(text: str) -> Interval:
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 0 < int(text) <= MAX_SECONDS:
        raise InvalidValue("ttl_duration", text, f"must be a whole number of seconds from 1 to {MAX_SECONDS}")
    return from_seconds(int(text))


def _column(text: str) -> str:
    if not text:
        raise InvalidValue("ttl_col", text, "must name a column")
    return text
