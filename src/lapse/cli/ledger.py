"""`lapse ledger`: who did what, and whether the record of it is whole."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lapse.app.facade import LEDGER_LIMIT
from lapse.app.ledger import parse_head, summary, who
from lapse.app.ledger_keys import KeyHistory
from lapse.app.records import deleted_row_record, entry_record, key_record, verdict_record
from lapse.cli.opening import Json, Url, open_database, shifted
from lapse.cli.output import Output
from lapse.errors import UsageError
from lapse.model.ledger import ChainVerdict, Head, LedgerEntry

FAILED = 1


def ledger(
    url: Url = None,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Entries about this table only.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")] = LEDGER_LIMIT,
    verify: Annotated[bool, typer.Option("--verify", help="Check every entry; name the first that is wrong.")] = False,
    head: Annotated[
        list[str] | None,
        typer.Option(metavar="N:HASH", help="With --verify: an entry that was noted earlier must still be there."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE",
            help="With TABLE: when a row with this primary key was deleted. Once for each column of the key.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List who did what to policies, holds, settings and rows, newest first, or verify that nothing of it was changed.

    Entries are chained by hashes. The last line names the newest: noted outside of the database, and given to
    `--verify --head` later, it shows that no entry up to it was removed.

    `--key` needs a policy with `ttl_ledger_keys`: was this row deleted, when and by which job?

    Example: `lapse ledger sqlite:///app.db events --key 4711`
    """
    url, table = shifted(url, table)
    if head and not verify:
        raise UsageError("--head is for --verify")
    if verify and table is not None:
        raise UsageError("--verify checks the whole ledger, as its entries are one chain", hint="leave the table out")
    if key is not None and (verify or table is None):
        raise UsageError("--key is about rows of one table", hint="lapse ledger URL TABLE --key 4711")
    heads, output = [parse_head(each) for each in head or ()], Output()
    with open_database(url) as database:
        if verify:
            _verify(output, database.verify_ledger(*heads), as_json=as_json)
            return
        if key is not None:
            _tell(output, database.deleted(table or "", *key), as_json=as_json)
            return
        found, newest = database.ledger(table, limit=limit), database.ledger_head()
    if as_json:
        output.json([entry_record(each) for each in found])
    else:
        _show(output, found, newest)


def _tell(output: Output, history: KeyHistory, *, as_json: bool) -> None:
    if as_json:
        output.json(key_record(history))
        return
    if history.found:
        columns = ("deleted (UTC)", "job", "policy version", "cutoff", "entry")
        rows = [_deletion(deleted_row_record(each)) for each in history.found]
        output.table(columns, rows, right=("job", "policy version", "entry"), whole=("deleted (UTC)",))
    else:
        output.line(f"No row of {history.table} with the key {', '.join(history.key)} is on record as deleted.")
    output.line(
        f"Keys of {history.table} on record: {history.rows:,}, of rows that jobs deleted from"
        f" {_minute(history.since)} to {_minute(history.until)}."
    )


def _deletion(record: dict[str, Any]) -> tuple[object, ...]:
    if record["policy_version"] is None:
        return _minute(record["deleted_at"]), record["job"], "-", "-", "the job has not ended"
    ends = _minute(record["cutoff"]), record["entry"] or "-"
    return _minute(record["deleted_at"]), record["job"], record["policy_version"], *ends


def _minute(at: str) -> str:
    return at[:19].replace("T", " ")


def _verify(output: Output, verdict: ChainVerdict, *, as_json: bool) -> None:
    if as_json:
        output.json(verdict_record(verdict))
    elif verdict.holds:
        pruned = f", and {verdict.pruned:,} older ones were pruned on record" if verdict.pruned else ""
        output.line(f"All {verdict.entries:,} entries are what was recorded{pruned}.")
        output.line(f"Head: {verdict.head}")
    else:
        output.problem("error", f"the ledger was tampered with: {verdict.broken}")
    if verdict.waiting and not as_json:
        output.notice(f"{verdict.waiting:,} entries are recorded and not sealed into the chain yet")
    if not verdict.holds:
        raise typer.Exit(FAILED)


def _show(output: Output, found: list[LedgerEntry], newest: Head | None) -> None:
    columns = ("entry", "when (UTC)", "what", "table", "who", "details")
    rows = [
        (each.sequence or "-", each.at[:19].replace("T", " "), each.kind, each.table or "-", who(each), summary(each))
        for each in found
    ]
    output.table(columns, rows, right=("entry",), whole=("when (UTC)",))
    if newest is not None:
        output.line(f"Head: {newest}")
