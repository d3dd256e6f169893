"""Rows out of nothing, in SQL that MariaDB and MySQL both read."""

from __future__ import annotations


def numbers(last: int, first: int = 1) -> str:
    """As it stands after FROM: one row for each number from `first` to `last`, called `seq`."""
    count = last - first + 1
    table = f"JSON_TABLE(concat('[0', repeat(',0', {count - 1}), ']'), '$[*]' COLUMNS (n FOR ORDINALITY)) AS one"
    return f"(SELECT CAST(n AS SIGNED) + {first - 1} AS seq FROM {table}) AS numbers"
