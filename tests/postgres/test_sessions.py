"""Settings of the database that could get in the way."""

from __future__ import annotations

import psycopg

from tests.conformance.harness import Harness


def test_defaults_of_the_database_do_not_matter(h: Harness, client: psycopg.Connection) -> None:
    name = h.url.rpartition("/")[2]
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))
    for setting in (
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = 'on'",
        "DateStyle = 'German'",
        "IntervalStyle = 'sql_standard'",
        "standard_conforming_strings = 'off'",
        "enable_tidscan = 'off'",
        "statement_timeout = '1h'",
    ):
        client.execute(f"ALTER DATABASE {name} SET {setting}")
    with h.open() as fresh:
        assert fresh.run("events").deleted == 1
        assert fresh.preview("events")[0].survey.rows == 1
