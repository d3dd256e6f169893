"""What a run says while it works: a progress bar where it takes longer than a second, and locks that it waits for."""

from __future__ import annotations

from threading import Lock
from time import monotonic
from types import TracebackType

import rich.progress
from rich.console import Console

from lapse.app import Lapse
from lapse.cli.output import Output, duration
from lapse.errors import LapseError
from lapse.model.job import Job, PathKind
from lapse.runner.events import BatchDone, Cause, LockWait, NullListener

SHOWN_AFTER_SECONDS = 1.0


class ProgressBar(NullListener):
    """A Listener. The bar of a job measures rows read against the table's size, where the path reads them all."""

    def __init__(self, database: Lapse, console: Console, *, shown_after: float = SHOWN_AFTER_SECONDS) -> None:
        self._database = database
        self._shown_after = shown_after
        self._started = monotonic()
        self._lock = Lock()
        self._bars: dict[int, rich.progress.TaskID] = {}
        self._display = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.fields[deleted]:,} deleted{task.fields[waiting]}"),
            rich.progress.TimeElapsedColumn(),
            console=console,
            transient=True,
        )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._display.stop()

    def job_created(self, job: Job) -> None:
        with self._lock:
            self._bar(job)

    def job_ended(self, job: Job) -> None:
        with self._lock:
            bar = self._bar(job)
            total = self._display.tasks[self._display.task_ids.index(bar)].total
            self._display.update(bar, completed=total, waiting="")

    def batch_done(self, event: BatchDone) -> None:
        with self._lock:
            bar = self._bar(event.job)
            task = self._display.tasks[self._display.task_ids.index(bar)]
            deleted = task.fields["deleted"] + event.batch.deleted
            self._display.update(bar, advance=event.batch.examined, deleted=deleted, waiting="")
            self._show()

    def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
        with self._lock:
            self._display.update(self._bar(job), waiting=f" (waiting: {reason})")
            self._show()

    def _show(self) -> None:
        if monotonic() - self._started >= self._shown_after and not self._display.live.is_started:
            self._display.start()

    def _bar(self, job: Job) -> rich.progress.TaskID:
        if job.id not in self._bars:
            self._bars[job.id] = self._display.add_task(
                str(job.table), total=self._total(job), deleted=job.counts.deleted, waiting=""
            )
        return self._bars[job.id]

    def _total(self, job: Job) -> float | None:
        if job.path.kind is not PathKind.PHYSICAL:
            return None
        try:
            return self._database.estimate_rows(job) or None
        except LapseError:
            # A bar without an end is no reason to fail a run.
            return None


class LockLines(NullListener):
    """A Listener. On a terminal and elsewhere: a run from cron that waits is looked at, too."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def locked(self, event: LockWait) -> None:
        self._output.notice(f"{event}: waiting for it")

    def unlocked(self, event: LockWait, seconds: float) -> None:
        self._output.notice(f"{event.what} is no longer locked, after {duration(seconds)}")
