"""`lapse status`: how every table with a policy is doing."""

from __future__ import annotations

from lapse.app import TableStatus
from lapse.app.records import expiry_words, status_record
from lapse.cli.jobs import deleted
from lapse.cli.opening import Json, Url, open_database
from lapse.cli.output import Output, moment


def status(url: Url = None, as_json: Json = False) -> None:
    """List the tables with a TTL policy: when their rows expire, what is going on, what the last job did.

    The promise is kept while expired rows are gone within the policy's `ttl_delete_within`.

    Example: `lapse status sqlite:///app.db --json`
    """
    output = Output()
    with open_database(url) as database:
        statuses = database.status()
    if as_json:
        output.json([status_record(each) for each in statuses])
    elif not statuses:
        output.line("No table has a TTL policy.")
    else:
        columns = ("table", "state", "rows expire", "promise", "next run (UTC)", "last job", "deleted")
        output.table(columns, [_row(each) for each in statuses], right=("deleted",))
        for counters in [each.native for each in statuses if each.native][:1]:
            output.line("the engine counts " + ", ".join(f"{name} {value:,}" for name, value in counters.items()))


def _row(status: TableStatus) -> tuple[object, ...]:
    last = status.current or status.last
    reason = status.reason or (status.current.waiting_for if status.current else None)
    return (
        status.table,
        _state(status.state, reason),
        expiry_words(status.stored.policy),
        str(status.promise.standing) + (f": {status.promise.reason}" if status.promise.reason else ""),
        moment(status.next_run_at),
        "-" if last is None else f"{last.id} {last.status}",
        "-" if last is None else deleted(last),
    )


def _state(state: str, reason: str | None) -> str:
    if reason is None:
        return state
    return reason if reason.startswith(state) else f"{state}: {reason}"
