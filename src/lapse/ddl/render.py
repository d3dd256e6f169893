"""A policy written as the TTL clause that declares it, in the dialect of each system that has one.

What a dialect has no words for is refused: a declaration that says less than the policy would be another policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from lapse.ddl.comment import MAX_SECONDS, NEVER, CommentRules, write_comment
from lapse.ddl.literal import quote_backticks, quote_if_needed, quote_text
from lapse.errors import InvalidValue, Unsupported
from lapse.model import parameters
from lapse.model.interval import Interval
from lapse.model.policy import PartitionRule, Policy
from lapse.model.table import TableName

TARGETS = ("cockroach", "tidb", "myrocks", "lapse")
"""`lapse` is CockroachDB's syntax with all of Lapse's parameters, and MyRocks's comment for rules of partitions."""

EXPIRY_FIELDS = ("expire_after", "expression", "column", "interval", "partitions")
_NAMES = {parameter.field: parameter.name for parameter in parameters.PARAMETERS.values() if parameter.field}
_TIDB_PARAMETERS = frozenset({"pause", "job_interval"})
_LAPSE_ONLY = frozenset(
    {
        "job_interval",
        "adaptive",
        "time_zone",
        "time_format",
        "filter",
        "keep_last",
        "hide_expired",
        "partition_drop",
        "replication_origin",
        "archive",
        "archive_keep",
        "ledger_keys",
        "delete_within",
        "guard",
    }
)


def render(policy: Policy, table: TableName, dialect: str, *, kind: str = "alter") -> str:
    """An ALTER TABLE, or with `kind="create-suffix"` what to write behind the columns of a CREATE TABLE."""
    if kind not in ("alter", "create-suffix"):
        raise InvalidValue("kind", kind, "must be 'alter' or 'create-suffix'")
    return write(policy_fields(policy), table if kind == "alter" else None, dialect)


def render_options(policy: Policy) -> list[str]:
    """The policy as PostgreSQL's `pg_class.reloptions` would list it."""
    parameters = {"ttl": "on"} | storage_parameters(policy_fields(policy))
    for rule in policy.partitions:
        parameters[f"{rule.partition}_ttl_duration"] = str(rule.after)
        if rule.column is not None:
            parameters[f"{rule.partition}_ttl_col"] = rule.column
    return [f"{name}={quote_text(str(value))}" for name, value in parameters.items()]


def write(values: Mapping[str, Any], table: TableName | None, dialect: str) -> str:
    """The clause for some fields of a Policy; with `table`, the ALTER TABLE that sets them."""
    if dialect not in TARGETS:
        raise InvalidValue("dialect", dialect, f"must be one of {', '.join(TARGETS)}")
    missing = [field for field in values if field not in EXPIRY_FIELDS and not has_parameter(field, dialect)]
    if missing:
        raise _unsupported(_NAMES[missing[0]], dialect)
    if dialect == "lapse" and values.get("partitions"):
        return _with_partitions(values, table)
    clause = _WRITERS[dialect](values)
    if dialect in ("tidb", "myrocks"):
        return f"ALTER TABLE {table_name(table, dialect)} {clause}" if table else clause
    return f"ALTER TABLE {table_name(table, dialect)} SET ({clause})" if table else f"WITH ({clause})"


def _with_partitions(values: Mapping[str, Any], table: TableName | None) -> str:
    """Parameters as storage parameters, expiry in the comment: only that has words for partitions."""
    parameter_values = {field: value for field, value in values.items() if field not in EXPIRY_FIELDS}
    comment = _comment({field: value for field, value in values.items() if field in EXPIRY_FIELDS}, "lapse")
    clause = f"COMMENT = {quote_text(comment)}"
    parameters = _cockroach(parameter_values, "lapse")
    if table is None:
        return f"WITH ({parameters}) {clause}" if parameters else clause
    return f"ALTER TABLE {table_name(table, 'lapse')} " + (f"SET ({parameters}), {clause}" if parameters else clause)


def has_parameter(field: str, dialect: str) -> bool:
    if dialect == "cockroach":
        return field not in _LAPSE_ONLY
    return dialect == "lapse" or (dialect == "tidb" and field in _TIDB_PARAMETERS)


def policy_fields(policy: Policy) -> dict[str, Any]:
    """What a policy sets that is not the default anyway."""
    values = {field.name: getattr(policy, field.name) for field in fields(policy)}
    defaults = {field.name: field.default for field in fields(policy)}
    return {name: value for name, value in values.items() if value != defaults[name]}


def table_name(table: TableName, dialect: str) -> str:
    quote: Callable[[str], str] = quote_backticks if dialect in ("tidb", "myrocks") else quote_if_needed
    return ".".join(quote(part) for part in (table.schema, table.name) if part is not None)


def storage_parameters(values: Mapping[str, Any], dialect: str = "lapse") -> dict[str, str | int]:
    """CockroachDB's storage parameters for some fields of a Policy."""
    written: dict[str, str | int] = {}
    for field, name in _NAMES.items():
        if field == "expression" and values.get("column") is not None:
            written[name] = column_expression(values["column"], values["interval"])
        elif field == "select_as_of_system_time" and field in values and dialect == "cockroach":
            written[name] = _staleness(values[field])
        elif field in values:
            value = values[field]
            is_number = isinstance(value, int) and not isinstance(value, bool)
            written[name] = value if is_number else parameters.write(value)
    return written


def column_expression(column: str, after: Interval) -> str:
    return f"{quote_if_needed(column)} + INTERVAL '{after}'" if after else quote_if_needed(column)


def _staleness(value: Interval) -> str:
    """CockroachDB reads one signed duration."""
    seconds, micros = divmod(value.micros, 1_000_000)
    return f"-{seconds}.{micros:06}".rstrip("0").rstrip(".") + "s"


def _cockroach(values: Mapping[str, Any], dialect: str = "cockroach") -> str:
    if values.get("partitions"):
        raise _unsupported(f"{values['partitions'][0].partition}_ttl_duration", dialect)
    parameters = storage_parameters(values, dialect)
    return ", ".join(
        f"{name} = {value if isinstance(value, int) else quote_text(value)}" for name, value in parameters.items()
    )


def _tidb(values: Mapping[str, Any]) -> str:
    for field in ("expire_after", "expression", "partitions"):
        if values.get(field):
            hint = "TiDB knows TTL = column + INTERVAL only; name a column that holds the time"
            raise _unsupported(_NAMES.get(field, "ttl_duration of a partition"), "tidb", hint)
    options: list[str] = []
    if values.get("column") is not None:
        after = _written(Interval.to_mysql, values["interval"], "TTL", "tidb")
        options.append(f"TTL = {quote_backticks(values['column'])} + {after}")
    if "pause" in values:
        options.append(f"TTL_ENABLE = '{'OFF' if values['pause'] else 'ON'}'")
    if "job_interval" in values:
        every = _written(Interval.to_go, values["job_interval"], "ttl_job_interval", "tidb")
        options.append(f"TTL_JOB_INTERVAL = '{every}'")
    return " ".join(options)


def _myrocks(values: Mapping[str, Any]) -> str:
    return f"COMMENT = {quote_text(_comment(values, 'myrocks'), backslashes=True)}"


def _comment(values: Mapping[str, Any], dialect: str) -> str:
    partitions: tuple[PartitionRule, ...] = values.get("partitions", ())
    column, duration = values.get("column"), values.get("interval")
    if values.get("expire_after") is not None:
        if column is not None:
            raise _unsupported("ttl_expire_after", dialect, "MyRocks takes the time from one place only")
        duration = values["expire_after"]
    expression = values.get("expression")
    only_partitions = duration is None and partitions and all(rule.column is not None for rule in partitions)
    if expression is not None and not (expression == NEVER and only_partitions):
        raise _unsupported("ttl_expiration_expression", dialect, "MyRocks knows ttl_col and ttl_duration only")
    _check_comment(duration, column, partitions)
    return write_comment(CommentRules(duration=duration, column=column, partitions=partitions))


def _check_comment(duration: Interval | None, column: str | None, partitions: tuple[PartitionRule, ...]) -> None:
    """Names and durations that the comment's few signs could not carry."""
    for after in (duration, *(rule.after for rule in partitions)):
        seconds = _written(Interval.to_seconds, after, "ttl_duration", "myrocks") if after is not None else 1
        if not 0 < seconds <= MAX_SECONDS:
            raise _unsupported("ttl_duration", "myrocks", f"MyRocks takes 1 to {MAX_SECONDS} seconds")
    for name in (column, *(rule.column for rule in partitions)):
        if name is not None and (";" in name or name != name.strip() or not name):
            raise _unsupported("ttl_col", "myrocks", f"the name {name!r} cannot be written in a comment")
    for rule in partitions:
        if re.search(r"[\s;=]", rule.partition):
            raise _unsupported(
                "ttl_duration of a partition", "myrocks", f"the name {rule.partition!r} cannot be written"
            )


def _written(writer: Callable[[Interval], Any], value: Interval, name: str, dialect: str) -> Any:
    try:
        return writer(value)
    except InvalidValue as problem:
        raise _unsupported(name, dialect, f"{problem.value} {problem.allowed}") from problem


def _unsupported(name: str, dialect: str, hint: str | None = None) -> Unsupported:
    return Unsupported(f"{name} cannot be written for {_TITLES[dialect]}", hint=hint)


_TITLES = {"cockroach": "CockroachDB", "tidb": "TiDB", "myrocks": "MyRocks", "lapse": "Lapse"}
_WRITERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "cockroach": _cockroach,
    "lapse": lambda values: _cockroach(values, "lapse"),
    "tidb": _tidb,
    "myrocks": _myrocks,
}
