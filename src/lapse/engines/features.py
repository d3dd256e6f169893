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

    table_locks: bool = True
    """Can a session lock a whole table, or the file it is in? Dropping a partition that was looked at takes it."""

    lists_temporary_tables: bool = True
    """Does the database's own catalog say that a session's table of a name is a temporary one?"""

    json_times: bool = True
    """Can an expression take a time out of a JSON document?"""

    own_settings: bool = True
    """Are the `tidb_ttl_…` settings Lapse's own, and not variables of the server?"""

    managed_column: bool = True
    """Can rows be stamped and renewed in a hidden column, as `ttl_expire_after` wants?"""

    archives: bool = True
    """Can rows move to another table, `ttl_archive`, in the transaction that deletes them?"""

    records_keys: bool = True
    """Can the keys of deleted rows be recorded, `ttl_ledger_keys`, in the transaction that deletes them?"""

    keeps_last: bool = True
    """Can a batch see, and hold, the rows of a group that `ttl_keep_last` keeps?"""

    triggers: bool = True
    """Can a trigger run, and object, when a row is deleted?"""

    skips_locked: bool = True
    """Can a locking read pass by rows that other transactions have locked, or not committed?"""

    records_with_batches: bool = True
    """Can the transaction that deletes rows also record their job? Not where it is kept from replicas, which know the
    job, and not where a read cannot lock a policy against those who change it."""

    hashes_keys: bool = False
    """Does the database itself hash the keys of deleted rows, with a secret that a worker need not be able to read?"""

    judges_by_own_clock: bool = False
    """Does the server itself refuse to delete a row that has not expired by its own clock, whatever the cutoff?"""

    client_requests: bool = False
    """Can people ask for TTL from the database's own client, by functions in the catalog's schema?"""

    describes_together: bool = False
    """Does it take hardly longer to describe several tables than to describe one?"""

    counts_inserts: bool = False
    """Do the server's counters say how many rows were ever inserted into a table?"""

    returns_space: bool = False
    """Is there space to return to the file system after a run, in steps?"""
