"""The managed column before it is there: a policy is checked against the table as it will be."""

from __future__ import annotations

from dataclasses import replace

from lapse.engines.base import BoundPolicy
from lapse.errors import PolicyConflict
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Column


def with_managed_column(declared: BoundPolicy, kind: str) -> BoundPolicy:
    """With a managed column of that type, if the policy wants one and the table has none yet."""
    table = declared.table
    if declared.policy.expire_after is None or table.column(MANAGED_COLUMN):
        return declared
    column = Column(name=MANAGED_COLUMN, type=kind)
    return replace(declared, table=replace(table, columns=(*table.columns, column)))


def becomes_managed(declared: BoundPolicy, previous: Policy | None) -> bool:
    """Does the policy want a managed column where there was none?"""
    return declared.policy.expire_after is not None and (previous is None or previous.expire_after is None)


def changes_columns(declared: BoundPolicy, previous: Policy | None) -> bool:
    """May installing the policy add, drop or alter the managed column?"""
    return declared.policy.expire_after is not None or (previous is not None and previous.expire_after is not None)


def refuse_taken_name(declared: BoundPolicy, previous: Policy | None) -> None:
    """A column of that name which Lapse did not make is not ours to change."""
    if becomes_managed(declared, previous) and declared.table.column(MANAGED_COLUMN):
        raise PolicyConflict(
            f"table {declared.table.name} already has a column {MANAGED_COLUMN}",
            hint=f"declare ttl_expiration_expression = '{MANAGED_COLUMN}' to use it as it is, or drop it first: "
            f"ALTER TABLE {declared.table.name} DROP COLUMN {MANAGED_COLUMN}",
        )
