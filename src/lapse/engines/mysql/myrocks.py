"""MyRocks's own TTL: a comment on the table that its compaction obeys.

MyRocks reads the comment without a word of complaint: what it does not understand it ignores, and some mistakes hide
every row at once. So Lapse writes the comment itself in the one form that works, and reads back from
`information_schema.rocksdb_ddl` what MyRocks made of it. A policy that MyRocks cannot express is left to Lapse's job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import Connection

from lapse.engines.base import Advice, BoundPolicy
from lapse.engines.mysql.names import literal, qualified, quote, source
from lapse.errors import Drift, Unsupported
from lapse.model.interval import SECOND, Interval
from lapse.model.policy import ColumnExpiry, Policy
from lapse.model.table import MANAGED_COLUMN, Column, Table, TableName

ENGINE = "ROCKSDB"
IMPLICIT = "myrocks creation time"
"""The type of the column that MyRocks hides in every row of a table with `ttl_duration` and no `ttl_col`."""
MAX_SECONDS = 2**62
"""Beyond it, adding the duration to a time wraps around, and every row is invisible."""
LARGEST_SECONDS_VALUE = 10**11
"""A larger unix time is milliseconds, and would expire in some thousand years."""

_ITEM = re.compile(r"\s*(?P<key>[^=]*ttl_(?:duration|col))\s*=(?P<value>.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expressed:
    """`comment` is what the table's comment must say; `reason` is set where MyRocks cannot do it."""

    comment: str | None = None
    reason: str | None = None


def express(table: Table, policy: Policy) -> Expressed:
    """The policy in MyRocks's words, or why not."""
    items: list[str] = []
    expiry = policy.expiry
    if policy.filter is not None:
        return Expressed(reason="it knows no ttl_filter")
    if policy.keep_last is not None:
        return Expressed(reason="it knows no ttl_keep_last")
    try:
        if isinstance(expiry, ColumnExpiry) and expiry.column == MANAGED_COLUMN:
            items += _implicit(table, policy)
        elif isinstance(expiry, ColumnExpiry):
            items += _explicit("", expiry.after, _column(table, expiry.column))
        elif policy.expression is None or policy.expression.upper() != "NULL":
            return Expressed(reason="its expiry is an expression")
        for rule in policy.partitions:
            name = rule.column or policy.column
            if name is not None:
                items += _explicit(f"{rule.partition}_", rule.after, _column(table, name))
            else:
                items.append(f"{rule.partition}_ttl_duration={_seconds(rule.after)}")
    except Unsupported as error:
        return Expressed(reason=error.message)
    return Expressed(comment="".join(f"{item};" for item in items))


def _implicit(table: Table, policy: Policy) -> list[str]:
    """Only where the table's own comment asks for it: MyRocks counts from the insert, and no update renews a row."""
    assert policy.expire_after is not None
    item = f"ttl_duration={_seconds(policy.expire_after)}"
    if item not in (table.comment or "").split(";"):
        raise Unsupported("MyRocks does not renew a row when it is updated, as ttl_expire_after does")
    return [item]


def _explicit(prefix: str, after: Interval, column: Column) -> list[str]:
    if column.type.lower().split("(")[0].split()[0] != "bigint" or "unsigned" not in column.type.lower():
        raise Unsupported(f"its TTL column {column.name} must be BIGINT UNSIGNED, not {column.type}")
    if column.nullable or column.generated:
        raise Unsupported(f"its TTL column {column.name} must be NOT NULL and not generated")
    return [f"{prefix}ttl_duration={_seconds(after)}", f"{prefix}ttl_col={column.name}"]


def _seconds(after: Interval) -> int:
    if after.months or after.micros % SECOND or not after:
        raise Unsupported(f"MyRocks counts in whole seconds, at least one, and {after} is none")
    if after.micros // SECOND > MAX_SECONDS:
        raise Unsupported(f"{after} is more than MyRocks can add to a time")
    return after.micros // SECOND


def _column(table: Table, name: str) -> Column:
    column = table.column(name)
    if column is None:
        raise Unsupported(f"it has no column {name}")
    return column


def implicit_column(comment: str | None) -> Column | None:
    """The hidden creation time under the name Lapse gives to it, where the table's comment brings it into being."""
    items = (comment or "").split(";")
    if any(item.startswith("ttl_duration=") for item in items) and not any(i.startswith("ttl_col=") for i in items):
        return Column(name=MANAGED_COLUMN, type=IMPLICIT, nullable=False, generated=True)
    return None


def check_comment(table: Table) -> None:
    """Refuse a comment of the user's that MyRocks would misread."""
    for item in (table.comment or "").split(";"):
        match = _ITEM.fullmatch(item)
        if match is None:
            continue
        key, value = match["key"], match["value"]
        what = "ttl_duration" if key.lower().endswith("duration") else "ttl_col"
        if item != f"{key}={value}" or key != key.strip() or not key.endswith(what) or value != value.strip():
            raise Unsupported(
                f"the comment of {table.name} says {item!r}, which MyRocks would ignore",
                hint=f"write {what}=… in lower case and without blanks",
            )
        if what == "ttl_duration" and (not value.isdecimal() or not 0 < int(value) <= MAX_SECONDS):
            raise Unsupported(f"the comment of {table.name} says {item!r}: the duration must be whole seconds above 0")
        partition = key.removesuffix(what).removesuffix("_")
        if partition and partition not in table.partitions:
            raise Unsupported(f"the comment of {table.name} names the partition {partition}, which does not exist")


def install(connection: Connection, table: Table, wanted: str | None) -> None:
    """Make the table's comment say `wanted`, and nothing else about TTL. MyRocks copies the table to do so."""
    others = [item for item in (table.comment or "").split(";") if item and _ITEM.fullmatch(item) is None]
    comment = "".join(f"{item};" for item in others) + (wanted or "")
    if ttl_items(table.comment) == (wanted or ""):
        return
    if not wanted:
        comment = ";".join(others)
    connection.exec_driver_sql(f"ALTER TABLE {qualified(table.name)} COMMENT = {literal(comment)}")


def ttl_items(comment: str | None) -> str:
    return "".join(f"{item};" for item in (comment or "").split(";") if _ITEM.fullmatch(item) is not None)


def understood(connection: Connection, name: TableName) -> int:
    """The duration in seconds that MyRocks has for the rows of a table or partition; 0 is none."""
    seconds = connection.exec_driver_sql(
        "SELECT max(TTL_DURATION) FROM information_schema.ROCKSDB_DDL WHERE TABLE_SCHEMA = coalesce(%s, DATABASE())"
        " AND TABLE_NAME = %s AND coalesce(PARTITION_NAME, '') = %s",
        (name.schema, name.name, name.partition or ""),
    ).scalar()
    return int(seconds or 0)


def verify(connection: Connection, declared: BoundPolicy) -> None:
    """Raises Drift unless MyRocks deletes, and hides, the rows of this table or partition as the policy says."""
    expected = expected_seconds(declared.policy)
    found = understood(connection, declared.table.name)
    if found != expected:
        raise Drift(
            f"MyRocks has a TTL of {found} s for {declared.table.name}, not {expected} s as its policy says",
            hint="lapse doctor --repair",
        )
    switches = connection.exec_driver_sql("SHOW GLOBAL VARIABLES LIKE 'rocksdb\\_enable\\_ttl%%'".replace("%%", "%"))
    off = [str(row[0]) for row in switches if str(row[1]).upper() != "ON"]
    if off:
        raise Unsupported(
            f"MyRocks does not apply TTL: {' and '.join(off)} is OFF",
            hint="; ".join(f"SET GLOBAL {name} = ON" for name in off),
        )


def expected_seconds(policy: Policy) -> int:
    expiry = policy.expiry
    if isinstance(expiry, ColumnExpiry) and expiry.column != MANAGED_COLUMN:
        return _seconds(expiry.after)
    return _seconds(policy.expire_after) if policy.expire_after is not None else 0


def advice(connection: Connection, table: Table, policy: Policy) -> list[Advice]:
    """What MyRocks does that one would not expect."""
    found = [
        Advice(
            text=f"unique key {index.name} still holds the values of expired rows of {table.name} until a compaction "
            "removes them: inserting such a value again fails"
        )
        for index in table.indexes
        if index.unique and index.name != "PRIMARY"
    ]
    if policy.column is not None:
        found += _column_advice(connection, table, policy.column)
    return found


def _column_advice(connection: Connection, table: Table, column: str) -> list[Advice]:
    default = connection.exec_driver_sql(
        "SELECT COLUMN_DEFAULT FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = coalesce(%s, DATABASE())"
        " AND TABLE_NAME = %s AND COLUMN_NAME = %s",
        (table.name.schema, table.name.name, column),
    ).scalar()
    found = []
    if default is not None and str(default).strip("'") == "0":
        found.append(
            Advice(text=f"column {column} has the default 0: a row that is given no time is invisible at once")
        )
    sample = connection.exec_driver_sql(f"SELECT {quote(column)} FROM {source(table.name)} LIMIT 1").scalar()
    if sample is not None and int(sample) > LARGEST_SECONDS_VALUE and int(sample) < 2**62:
        found.append(Advice(text=f"column {column} seems to hold milliseconds; MyRocks counts in seconds"))
    return found
