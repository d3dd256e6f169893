"""A Listener that writes what jobs do to the log."""

from __future__ import annotations

import logging

from lapse.errors import Blocked
from lapse.model.blocked import BlockCode
from lapse.model.job import Job
from lapse.model.table import TableName
from lapse.runner.events import BatchDone, Cause, Held, LockWait, NullListener
from lapse.runner.jobs import block_text

log = logging.getLogger("lapse.worker")


class JobLog(NullListener):
    def job_created(self, job: Job) -> None:
        log.info("job %d of table %s begins: %s", job.id, job.table, job.path.evidence)

    def job_ended(self, job: Job) -> None:
        # Rows that cannot be deleted are warned about once, when that begins: `held`.
        level = logging.INFO if job.reason is None else logging.WARNING
        held = f", {job.counts.held} held" if job.counts.held else ""
        reason = held + (f": {job.reason}" if job.reason else "")
        log.log(level, "job %d of table %s %s, %d rows deleted%s", job.id, job.table, job.status, job.counts.deleted,
                reason)  # fmt: skip

    def table_blocked(self, table: TableName, why: Blocked) -> None:
        log.warning("table %s is blocked (%s): %s", table, why.code, block_text(why))

    def table_unblocked(self, table: TableName, code: BlockCode, seconds: float) -> None:
        log.info("table %s is no longer blocked (%s), after %.0f s", table, code, seconds)

    def locked(self, event: LockWait) -> None:
        log.warning("%s: waiting for it", event)

    def unlocked(self, event: LockWait, seconds: float) -> None:
        log.info("%s is no longer locked, after %.0f s", event.what, seconds)

    def held(self, event: Held) -> None:
        log.warning("table %s: %s; %s", event.table, event.reason, event.fix)

    def released(self, event: Held) -> None:
        log.info("table %s: %s", event.table, event.reason)

    def batch_done(self, event: BatchDone) -> None:
        log.debug("job %d: %d rows deleted in %.1f ms", event.job.id, event.batch.deleted, event.seconds * 1000)

    def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
        log.debug("job %d waits %.2f s: %s", job.id, seconds, reason)
