"""MyRocks's table comment: `ttl_duration=60;ttl_col=ts;p1_ttl_duration=5;p1_ttl_col=c2;`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lapse.errors import InvalidValue
from lapse.model import knobs
from lapse.model.interval import Interval, from_seconds
from lapse.model.policy import PartitionRule

NEVER = "NULL"
"""The expression of a table on which only some partitions have TTL: no row outside them expires."""

_ITEM = re.compile(
    r"\s*(?:(?P<partition>[^=]+)_)?ttl_(?P<what>duration|col)\s*=\s*(?P<value>.*?)\s*", re.DOTALL | re.IGNORECASE
)
_KNOB = re.compile(r"\s*(?P<name>ttl_\w+)\s*=\s*(?P<value>.*?)\s*", re.DOTALL | re.IGNORECASE)
_WORDS_BEFORE = re.compile(r"^.*\s(?=\S*ttl_\w+\s*=)", re.DOTALL)
_QUOTED = re.compile(r"^(['\"])([^'\"]*)\1$")
MAX_SECONDS = 2**31


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


def parse_comment(text: str) -> CommentRules | None:
    """The TTL rules in a table's comment; None when it has none and is just a comment."""
    durations: dict[str | None, Interval] = {}
    columns: dict[str | None, str] = {}
    for item in text.split(";"):
        match = _ITEM.fullmatch(item)
        if match is None:
            continue
        _refuse_upper_case(item)
        is_duration = match["what"].lower() == "duration"
        if match["partition"] in (durations if is_duration else columns):
            # MyRocks would take the first one and say nothing.
            raise InvalidValue("COMMENT", item.strip(), f"may say ttl_{match['what']} once only")
        if is_duration:
            durations[match["partition"]] = _seconds(match["value"])
        else:
            columns[match["partition"]] = _column(match["value"])
    if not durations and not columns:
        return None
    return _rules(durations, columns)


def _refuse_upper_case(item: str) -> None:
    """MyRocks reads its own words in lower case only and says nothing about others."""
    key = item.partition("=")[0].strip()
    word = "ttl_duration" if key.lower().endswith("ttl_duration") else "ttl_col"
    if not key.endswith(word):
        raise InvalidValue("COMMENT", item.strip(), f"must be written in lower case: {word}=…")


def parse_comment_policy(text: str) -> dict[str, Any] | None:
    """Fields of the policy that a table's comment declares, `ttl_…` knobs included; None when it is just a comment.

    Words may stand before the first item, as in `Events. ttl_duration=60;ttl_col=ts;`.
    """
    items = [_WORDS_BEFORE.sub("", item) for item in text.split(";")]
    rules = parse_comment(";".join(items))
    fields: dict[str, Any] = {} if rules is None else rules.fields()
    for item in items:
        knob = _KNOB.fullmatch(item)
        if knob is None or _ITEM.fullmatch(item):
            continue
        name, value = knob["name"].lower(), _QUOTED.sub(r"\2", knob["value"])
        found = knobs.find(name)
        if found.field == "expression":
            fields |= _expression_fields(found.parse(value, name))
        elif found.field is not None:
            fields[found.field] = found.parse(value, name)
    return fields or None


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


def write_comment(rules: CommentRules) -> str:
    """The comment that `parse_comment` reads as these rules."""
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


def _seconds(text: str) -> Interval:
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 0 < int(text) <= MAX_SECONDS:
        raise InvalidValue("ttl_duration", text, f"must be a whole number of seconds from 1 to {MAX_SECONDS}")
    return from_seconds(int(text))


def _column(text: str) -> str:
    if not text:
        raise InvalidValue("ttl_col", text, "must name a column")
    return text
