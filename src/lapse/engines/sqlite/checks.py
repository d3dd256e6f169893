"""What cannot work on SQLite is refused before anything is changed."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from lapse.engines import ledger_keys, planned
from lapse.engines.base import BoundPolicy
from lapse.engines.sqlite import archive, condition, managed, references
from lapse.engines.sqlite.names import row_address
from lapse.errors import Unsupported
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, TableKind


def check(connection: Connection, declared: BoundPolicy, previous: Policy | None, now: datetime) -> list[str]:
    """Raises Refused; returns notices."""
    table, policy = declared.table, declared.policy
    if table.kind is not TableKind.TABLE:
        raise Unsupported(f"{table.name} is a {table.kind}, and TTL works on tables")
    if policy.partitions or policy.partition_drop:
        raise Unsupported("SQLite has no partitions, so per-partition TTL and ttl_partition_drop cannot work")
    if policy.replication_origin is not None:
        raise Unsupported("SQLite has no replication, so ttl_replication_origin cannot work")
    if policy.hide_expired == "policy":
        raise Unsupported(
            "SQLite has no row security, so ttl_hide_expired = 'policy' cannot work", hint="use 'view' instead"
        )
    if not table.key:
        row_address(table)
    planned.refuse_taken_name(declared, previous)
    archive.check(connection, declared, previous)
    ledger_keys.check(declared, previous, lambda column: True)
    complete = planned.with_managed_column(declared, "TEXT")
    # The condition itself is the check: it needs its columns, and the columns need one time format. Where the policy is
    # what it was, and something is held, that was seen before.
    condition.at(connection, complete, now, whole=not declared.holds or policy != previous)
    if policy.hide_expired == "view":
        condition.expired_now(connection, complete)
    notices = [found.text for found in references.advice(connection, table)]
    if policy.expire_after is not None:
        notices += [
            f"trigger {name} fires once more for each stamp of {MANAGED_COLUMN}: after every INSERT and every UPDATE; "
            "say AFTER UPDATE OF the columns it is about"
            for name in managed.fires_twice(connection, table)
        ]
    if policy.select_as_of_system_time is not None:
        notices.append("ttl_select_as_of_system_time has no effect on SQLite, which has no replicas")
    return notices
