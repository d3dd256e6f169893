"""`lapse hold`, `lapse holds`, `lapse release`: rows that stay, whatever has expired."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from lapse.app.records import hold_record
from lapse.cli.opening import Json, TableArgument, Url, open_database, read_moment, shifted, url_and_table
from lapse.cli.output import Output, moment
from lapse.errors import InvalidValue, UsageError

Where = Annotated[
    str | None,
    typer.Option(metavar="EXPR", help="Which rows, written as ttl_filter is. Without it: all rows of the table."),
]
Until = Annotated[
    str | None, typer.Option(metavar="TIME", help="When it ends by itself, ISO 8601 with a zone. Without it: never.")
]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; `lapse holds` shows it.")]
Ended = Annotated[bool, typer.Option("--all", help="Also those that have ended.")]


def hold(
    url: Url = None, table: TableArgument = None, where: Where = None, until: Until = None, reason: Reason = None
) -> None:
    """Keep rows from being deleted, whatever has expired, until they are released.

    When the command returns, no job of any worker deletes one of them any more: batches that were at work have ended or
    were undone. Tables whose deletes would reach held rows by a foreign key with CASCADE stop, too, and `lapse status`
    says so. Held rows stay hidden where expired rows are hidden.

    Example: `lapse hold sqlite:///app.db orders --where "customer_id = 4711" --reason "case 12/2026"`
    """
    url, name = url_and_table(url, table)
    with open_database(url) as database:
        placed = database.hold(name, where, until=read_moment(until, "--until"), reason=reason)
    ends = "" if placed.until is None else f", until {moment(placed.until)} UTC"
    Output().line(f"Hold {placed.id} keeps {placed.rows} of table {placed.table}{ends}.")


def holds(url: Url = None, ended: Ended = False, as_json: Json = False) -> None:
    """List the holds: which rows of which table are kept, since when, by whom and why.

    Example: `lapse holds sqlite:///app.db`
    """
    output = Output()
    with open_database(url) as database:
        listed = database.holds(ended=ended)
    if as_json:
        output.json([hold_record(each) for each in listed])
    elif not listed:
        output.line("There is no hold." if ended else "Nothing is held.")
    else:
        columns = ("hold", "table", "rows", "placed (UTC)", "by", "ends (UTC)", "reason")
        rows = [
            (
                each.id,
                each.table,
                each.where or "all",
                moment(each.placed_at),
                each.placed_by or "-",
                _end(each.released_at, each.until),
                each.reason or "-",
            )
            for each in listed
        ]
        output.table(columns, rows, right=("hold",), whole=("placed (UTC)", "ends (UTC)"))


def release(
    url: Url = None, number: Annotated[str | None, typer.Argument(metavar="HOLD", help="Its number.")] = None
) -> None:
    """End a hold: rows that have expired go with the next job.

    Example: `lapse release sqlite:///app.db 3`
    """
    url, number = shifted(url, number)
    if number is None:
        raise UsageError("say which hold", hint="`lapse holds URL` lists them")
    if not number.isdecimal():
        raise InvalidValue("HOLD", number, "is not the number of a hold", hint="`lapse holds URL` lists them")
    with open_database(url) as database:
        ended = database.release(int(number))
    Output().line(f"Hold {ended.id} on table {ended.table} is released.")


def _end(released_at: datetime | None, until: datetime | None) -> str:
    return f"released {moment(released_at)}" if released_at is not None else moment(until)
