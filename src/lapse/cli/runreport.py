"""What a run has done, in a line per table that it did something to, and one for the rest."""

from __future__ import annotations

from collections.abc import Sequence

from lapse.app import Lapse, RunResult
from lapse.cli import preview
from lapse.cli.output import Output, rows, size
from lapse.cli.status import show_comment
from lapse.model.job import Counts, Job, JobStatus
from lapse.model.table import TableName

NAMES_SHOWN = 5


def show(output: Output, result: RunResult, *, verbose: bool = False, has_policies: bool = True) -> None:
    if not result.jobs and not result.skipped:
        output.line("Nothing is due." if has_policies else "No table has a TTL policy.")
    by_table: dict[TableName, list[Job]] = {}
    for job in result.jobs:
        by_table.setdefault(job.table if verbose else job.table.whole, []).append(job)
    quiet = [table for table, jobs in by_table.items() if _is_quiet(jobs)]
    summed_up = len(quiet) > 1 and not verbose
    for table, jobs in by_table.items():
        if not (summed_up and table in quiet):
            output.line(f"{table}: {_done(jobs)}")
    if summed_up:
        output.line(f"{len(quiet)} tables had nothing to delete.")
    _show_exports(output, result)
    _show_skipped(output, result, verbose=verbose)
    if result.reclaimed_bytes:
        output.line(f"{size(result.reclaimed_bytes)} given back to the file system")


def show_waiting(output: Output, database: Lapse, result: RunResult, *, verbose: bool) -> None:
    """What else a person has to decide: policies that comments propose, and first runs that wait for confirmation."""
    for proposal in result.proposals:
        show_comment(output, proposal)
    waiting = sorted({str(skip.table.whole) for skip in result.skipped if skip.held})
    if not waiting:
        return
    if len(waiting) == 1 or verbose:
        for table in waiting:
            output.line()
            preview.show_all(output, database.preview(table))
    names = _listed(waiting)
    output.hint(f"if that is meant, confirm it with `lapse run --yes` or `lapse resume` ({names})")


def _is_quiet(jobs: Sequence[Job]) -> bool:
    """Nothing expired was found, and nothing dropped."""
    untouched = (job.counts == Counts(batches=job.counts.batches) and not job.is_drop for job in jobs)
    return all(job.status is JobStatus.FINISHED for job in jobs) and all(untouched)


def _done(jobs: Sequence[Job]) -> str:
    dropped = [job for job in jobs if job.is_drop]
    others = [job for job in jobs if job not in dropped]
    parts = []
    if dropped:
        count = sum(job.counts.deleted for job in dropped)
        names = _listed([job.table.partition or str(job.table) for job in dropped])
        parts.append(f"dropped {_counted(len(dropped), 'partition')} ({names}) with {rows(count)}")
    if others:
        counts = sum((job.counts for job in others), Counts())
        about = "about " if any(job.estimated for job in others) else ""
        among = f" in {len(others)} partitions" if len(others) > 1 else ""
        parts.append(f"deleted {about}{rows(counts.deleted)}{among}")
        if counts.held:
            parts.append(f"{counts.held:,} held by a foreign key, a trigger or an error")
        if counts.skipped:
            parts.append(f"{counts.skipped:,} locked")
    return ", ".join(parts) + f" ({_ended(jobs)})"


def _ended(jobs: Sequence[Job]) -> str:
    """The states of the jobs, each once, with its reason."""
    words = []
    for job in jobs:
        if job.status.is_active and job.reason is None:
            word = "stopped; the next run goes on from here"
        else:
            word = f"{job.status.replace('_', ' ')}{f': {job.reason}' if job.reason else ''}"
        words.append(word)
    found = list(dict.fromkeys(words))
    return "; ".join(found if len(found) == 1 else [f"{words.count(word)} {word}" for word in found])


def _show_exports(output: Output, result: RunResult) -> None:
    for each in result.exports:
        if each.files:
            written = f"{rows(each.rows)} in {_counted(each.files, 'file')}, {size(each.bytes)}"
            output.line(f"{each.table}: {written}, written to {each.destination}")
        if each.waiting:
            output.line(f"{each.table}: {rows(each.waiting)} at most wait for their export by another process")
        if each.problem is not None:
            output.problem("error", each.problem)
            if each.hint:
                output.hint(each.hint)


def _show_skipped(output: Output, result: RunResult, *, verbose: bool) -> None:
    """Tables that got no job, those with the same reason in one line."""
    by_reason: dict[str, list[str]] = {}
    for skip in result.skipped:
        tables = by_reason.setdefault(skip.reason, [])
        name = str(skip.table if verbose else skip.table.whole)
        if name not in tables:
            tables.append(name)
    for reason, tables in by_reason.items():
        if len(tables) == 1 or verbose:
            for table in tables:
                output.line(f"{table}: skipped, {reason}")
        else:
            output.line(f"{len(tables)} tables skipped, {reason}: {_listed(tables)}")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count:,} {what}s"
