"""What an engine can do, as answers to questions. Tests skip by these, never by an engine's name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    transactional_ddl: bool
    """Does a rolled-back transaction undo CREATE and ALTER?"""

    time_types: bool
    """Do columns have real date and time types? If not, `ttl_time_format` says how time is stored."""

    table_comments: bool
    """Can a table carry a comment, and so a policy that any client declares?"""

    row_security: bool
    """Can `ttl_hide_expired = 'policy'` hide rows in the table itself?"""

    partitions: bool
    """Can a table have partitions?"""

    row_locks: bool
    """Can a client lock a single row, so that a job has to skip it?"""

    concurrent_writers: bool
    """Can two tasks delete at the same time and both get on?"""

    keeps_columns: bool
    """Does the database itself refuse to drop a column that a policy reads?"""

    failover_looks_like_a_copy: bool
    """Can a replica that took over not be told from a copy of the database, whose policies must not run?"""

    target_seconds: float
    """How long one delete statement should take on a server with nothing else to do."""

    short_seconds: float
    """How long it should take under foreground load, which may have to wait for it."""

    gentle_share: float
    """For which share of the time it should keep the server busy then, in mode `gentle`."""

    rows_per_task: int = 100_000
    """How many rows make a task: enough to outweigh the claiming of it, few enough that workers can share a table."""

    keeps_history: bool = False
    """Can a table keep rows that were deleted, as SYSTEM VERSIONING does?"""

    replaces_tables: bool = False
    """Is there a CREATE OR REPLACE TABLE, which puts another table in the place of one?"""

    uuid_type: bool = True
    """Is there a type UUID, or any name a type?"""

    refuses_to_wait: bool = False
    """Can one statement say that it will not wait for a row lock at all? If not, free rows are picked first."""

    judges_by_own_clock: bool = False
    """Does the server itself refuse to delete a row that has not expired by its own clock, whatever the cutoff?"""

    client_requests: bool = False
    """Can people ask for TTL from the database's own client, by functions in the catalog's schema?"""
