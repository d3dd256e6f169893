"""`lapse accept`: make what a table's comment proposes its policy."""

from __future__ import annotations

from lapse.app.records import expiry_words
from lapse.cli.opening import TableArgument, Url, open_database, url_and_table
from lapse.cli.output import Output


def accept(url: Url = None, table: TableArgument = None) -> None:
    """Accept the policy that a table's comment proposes.

    A comment is obeyed only on tables of the worker's own role, and of the owners in `lapse_trusted_owners`; others are
    proposals, listed by `lapse status`. Accepting one takes the rights of the table's owner. A later change of the
    comment is a new proposal.

    Example: `lapse accept postgresql+psycopg://owner@host/app sessions`
    """
    url, table = url_and_table(url, table)
    output = Output()
    with open_database(url) as database:
        notices = database.accept(table)
        stored = database.policy(table)
    for notice in notices:
        output.hint(notice)
    output.line(f"Table {stored.table} has the policy of its comment: rows expire {expiry_words(stored.policy)}.")
