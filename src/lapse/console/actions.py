"""What a person may ask for: run, pause, resume and cancel, with the question to answer first."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from lapse.app import PolicyHealth
from lapse.app.preview import outlook
from lapse.console.dashboard import Dashboard
from lapse.errors import LapseError, NotFound
from lapse.model.actor import acting
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, JobStatus
from lapse.model.statement import JobAction

PROGRAM = "lapse console"
"""As the ledger names it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionButton:
    """`question` and `done` have a place for the table's name; `is_grave` colours the button."""

    name: str
    label: str
    question: str
    effect: str
    done: str
    is_grave: bool = False


TABLE_ACTIONS = {
    action.name: action
    for action in (
        ActionButton(
            name="run",
            label="Run now",
            question="Run the TTL job of {} now?",
            effect="The table becomes due at once. The next worker that looks, within about a second, deletes every "
            "row that has expired by then. Rate limits and the daily window hold as usual.",
            done="{} is due: a worker starts its job as soon as it looks.",
        ),
        ActionButton(
            name="pause",
            label="Pause",
            question="Pause the TTL of {}?",
            effect="ttl_pause is set. An active job stops after the batch at hand and no new one starts; expired rows "
            "stay in the table until you resume.",
            done="{} is paused.",
        ),
        ActionButton(
            name="resume",
            label="Resume",
            question="Resume the TTL of {}?",
            effect="ttl_pause is reset. A job that was stopped goes on where it was, and the schedule holds again.",
            done="{} goes on.",
        ),
        ActionButton(
            name="confirm",
            label="Confirm first run",
            question="Let the first run of {} delete?",
            effect="It waits because it would delete more than half of the table or because the times look "
            "implausible. Look at what it would do before you confirm.",
            done="{} may run.",
            is_grave=True,
        ),
        ActionButton(
            name="cancel",
            label="Cancel job",
            question="Cancel the active job of {}?",
            effect="The job ends after the batch at hand. Rows that were deleted stay deleted; the rest waits for the "
            "next scheduled job.",
            done="The job of {} is being cancelled.",
            is_grave=True,
        ),
    )
}

JOB_ACTIONS = {
    action.name: action
    for action in (
        ActionButton(
            name="pause",
            label="Pause job",
            question="Pause this job of {}?",
            effect="The job stops after the batch at hand and keeps its place until you resume it.",
            done="The job of {} is paused.",
        ),
        ActionButton(
            name="resume",
            label="Resume job",
            question="Resume this job of {}?",
            effect="A worker takes the job up again, where it was.",
            done="The job of {} goes on.",
        ),
        ActionButton(
            name="cancel",
            label="Cancel job",
            question="Cancel this job of {}?",
            effect=TABLE_ACTIONS["cancel"].effect,
            done="The job of {} is being cancelled.",
            is_grave=True,
        ),
    )
}


def offered_on_table(health: PolicyHealth) -> list[ActionButton]:
    """Those that would do something now."""
    paused = health.stored.policy.pause
    names = (["resume"] if paused else ["pause"]) + (["cancel"] if health.jobs else [])
    if any(part.blocked is BlockCode.GUARD for part in health.parts):
        names = ["confirm", *names]
        return [TABLE_ACTIONS[name] for name in names]
    return [TABLE_ACTIONS[name] for name in (["run"] if not paused and not health.jobs else []) + names]


def offered_on_job(job: Job) -> list[ActionButton]:
    if not job.status.is_active or job.status is JobStatus.CANCELLING:
        return []
    return [JOB_ACTIONS[name] for name in ("resume" if job.control == JobAction.PAUSE else "pause", "cancel")]


def numbers(dashboard: Dashboard, policy_id: int, action: ActionButton) -> str | None:
    """What the question is about, in numbers; None where they cannot be had quickly."""
    if action.name not in ("run", "confirm"):
        with dashboard.look() as look:
            jobs = look.policy(policy_id).health.jobs
        deleted = sum(job.counts.deleted for job in jobs)
        return f"Its active job has deleted {deleted:,} rows so far." if jobs else None
    try:
        previews = dashboard.database.preview(dashboard.stored(policy_id))
    except LapseError:
        return None
    found = outlook([each.survey for each in previews], [each.consequences for each in previews])
    held = f" {found.held:,} more stay, because other rows refer to them." if found.held else ""
    return f"A run now {found}.{held}" if previews else None


def find(actions: dict[str, ActionButton], name: str) -> ActionButton:
    try:
        return actions[name]
    except KeyError:
        raise NotFound(f"there is no action {name!r}", hint=f"known actions: {', '.join(actions)}") from None


def act_on_table(dashboard: Dashboard, policy_id: int, action: ActionButton, who: str) -> None:
    stored, database = dashboard.stored(policy_id), dashboard.database
    log.info("console: %s asked to %s table %s", who, action.name, stored.table)
    with acting(user=who, program=PROGRAM):
        match action.name:
            case "run":
                database.request_run(stored)
            case "pause":
                database.pause(stored)
            case "resume":
                database.resume(stored)
            case "confirm":
                database.confirm(stored)
            case _:
                database.cancel(stored)


def act_on_job(dashboard: Dashboard, job_id: int, action: ActionButton, who: str) -> None:
    log.info("console: %s asked to %s job %d", who, action.name, job_id)
    with acting(user=who, program=PROGRAM):
        dashboard.database.control(job_id, JobAction(action.name))
