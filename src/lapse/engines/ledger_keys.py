"""`ttl_ledger_keys`: which tables have keys that can be recorded, whatever the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lapse.engines.values import BoundPolicy
from lapse.errors import Blocked, InvalidValue, Unsupported
from lapse.model.blocked import BlockCode
from lapse.model.policy import Policy
from lapse.model.table import Column, FkAction, Table

HEX = ("\\x", "0x")
"""What bytes are written behind, as PostgreSQL and as MySQL write them."""


def require(table: Table, can_be_told: Callable[[Column], bool]) -> None:
    """Before a batch. Raises Blocked where the key has become one that cannot be recorded."""
    if any((column := table.column(name)) is None or not can_be_told(column) for name in table.primary_key or ("",)):
        raise Blocked(
            BlockCode.COLUMN_CHANGED,
            f"the primary key of table {table.name}, which ttl_ledger_keys records, was dropped or changed",
            hint=f"make it what it was, or: ALTER TABLE {table.name} RESET (ttl_ledger_keys)",
        )


def check(declared: BoundPolicy, previous: Policy | None, can_be_told: Callable[[Column], bool]) -> None:
    """Raises Unsupported where the key of a row cannot be asked for later, or not every row would leave its key.

    Asked when it is switched on: what changes later is seen before every job, and keeps no one from placing a hold."""
    table = declared.table
    if not declared.policy.ledger_keys or (previous is not None and previous.ledger_keys):
        return
    if not table.primary_key:
        raise Unsupported(
            f"table {table.name} has no primary key, so there is no key of a deleted row to record",
            hint=f"ALTER TABLE {table.name} ADD PRIMARY KEY …, or go without ttl_ledger_keys",
        )
    for name in table.primary_key:
        column = table.column(name)
        if column is None or not can_be_told(column):
            kind = "" if column is None else f" is {column.type or 'of no type'}, and"
            raise Unsupported(
                f"column {name} of the primary key{kind} has no one way to write its values, so keys of table"
                f" {table.name} cannot be recorded",
                hint="go without ttl_ledger_keys",
            )
    if any(each.table == table.name.whole and each.action is FkAction.CASCADE for each in table.referenced_by):
        raise Unsupported(
            f"deleting a row of table {table.name} also deletes others of it by a foreign key, whose keys would not be"
            " recorded",
            hint="make the foreign key ON DELETE RESTRICT or NO ACTION, or go without ttl_ledger_keys",
        )


def refuse_other_width(table: Table, values: Sequence[str]) -> None:
    if len(values) != len(table.primary_key):
        key = ", ".join(table.primary_key)
        raise InvalidValue(
            "--key",
            ", ".join(values),
            f"must be one value for each column of the primary key of table {table.name}: ({key})",
            hint=" ".join(f"--key {name.upper()}" for name in table.primary_key),
        )


def from_hex(value: str, column: str) -> bytes:
    """Bytes as people write them."""
    digits = next(value[len(mark) :] for mark in HEX if value.startswith(mark))
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise InvalidValue("--key", value, f"is not hexadecimal, which column {column} needs") from None


def is_hex(value: str) -> bool:
    return value.startswith(HEX)
