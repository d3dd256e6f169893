"""Why a table's rows may not, or cannot, be deleted now: codes, which are stored and compared, never sentences."""

from __future__ import annotations

from enum import StrEnum


class BlockCode(StrEnum):
    """A sentence with the details and the command that resolves it goes with each."""

    TABLE_GONE = "table_gone"
    TABLE_REPLACED = "table_replaced"
    """Another table has the name of the one that the policy was declared on."""
    COLUMN_CHANGED = "column_changed"
    """A column that the policy reads, or the zone it is read in, is not what it was."""
    PARTS_MISSING = "parts_missing"
    """A trigger, default, view or function that Lapse installed is gone, disabled or not its own."""
    PARTITIONS_CHANGED = "partitions_changed"
    DATABASE_COPIED = "database_copied"
    CLOCK = "clock"
    GUARD = "guard"
    """The first run waits for confirmation."""
    GRACE = "grace"
    """A new or shortened policy waits for its grace period to end."""
    PRIVILEGE = "privilege"
    ROW_SECURITY = "row_security"
    """Row security hides rows from the worker."""
    COMMENT = "comment"
    """The table's comment, which declared the policy, says something else now."""
    LOCKED = "locked"
    GATE = "gate"
    """A gate has been closed for longer than `lapse_gate_patience`; its job waits and goes on when the gate opens."""
    ARCHIVE = "archive"
    """Rows cannot be written to the destination of their files, or not as fast as they are deleted."""
    HELD = "held"
    """A foreign key with CASCADE leads from the table to rows that a hold keeps."""
    ROWS_HELD = "rows_held"
    """Expired rows that a foreign key, a trigger or an error keeps from being deleted; all others are."""
    TIMED_OUT = "timed_out"
    """The last job did not end within `lapse_job_timeout`."""
    NO_WORKER = "no_worker"
    """No job has run yet, and no worker is there to run one."""
    BAD_DATA = "bad_data"
    """The expiry of a row cannot be computed."""
    UNSUPPORTED = "unsupported"
    """The policy does not fit the table as it is now."""
    ERROR = "error"
    """The database refused for another reason, which the sentence tells."""

    @property
    def needs_a_person(self) -> bool:
        """Does it last until a command resolves it? All others are tried again by themselves."""
        return self in _STICKY


_STICKY = frozenset(
    {
        BlockCode.TABLE_REPLACED,
        BlockCode.COLUMN_CHANGED,
        BlockCode.PARTS_MISSING,
        BlockCode.PARTITIONS_CHANGED,
        BlockCode.DATABASE_COPIED,
        BlockCode.CLOCK,
        BlockCode.GUARD,
        BlockCode.COMMENT,
    }
)
