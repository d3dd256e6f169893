"""`lapse status`: how every table with a policy is doing."""

from __future__ import annotations

from lapse.app import TableStatus
from lapse.cli.opening import Json, Url, open_database
from lapse.cli.output import Output, moment
from lapse.cli.records import expiry_words, status_record


def status(url: Url = None, as_json: Json = False) -> None:
    """List the tables with a TTL policy: when their rows expire, what is going on, what the last job did.

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
        columns = ("table", "state", "rows expire", "next run (UTC)", "last job", "deleted")
        output.table(columns, [_row(each) for each in statuses], right=("deleted",))
        for counters in [each.native for each in statuses if each.native][:1]:
            output.line("the engine counts " + ", ".join(f"{name} {value:,}" for name, value in counters.items()))


def _row(status: TableStatus) -> tuple[object, ...]:
    last = status.current or status.last
    return (
        status.table,
        _state(status),
        expiry_words(status.stored.policy),
        moment(status.next_run_at),
        "-" if last is None else f"{last.id} {last.status}",
        "-" if last is None else f"{last.counts.deleted:,}",
    )


def _state(status: TableStatus) -> str:
    if status.reason is None:
        return status.state
    return status.reason if status.reason.startswith(status.state) else f"{status.state}: {status.reason}"
