"""The rows of a statement, as a table, JSON or CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from enum import StrEnum

from lapse.app import Result
from lapse.cli.output import Output, plain, rows


class Form(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def write(output: Output, form: Form, result: Result) -> None:
    if not result.columns:
        if form is Form.TABLE:
            output.line(f"{rows(result.rowcount)} affected" if result.rowcount > 0 else "OK", "dim")
    elif form is Form.JSON:
        names = _distinct(result.columns)
        output.json([dict(zip(names, row, strict=True)) for row in result.rows])
    elif form is Form.CSV:
        writer = csv.writer(output.out.file, lineterminator="\n")
        writer.writerow(result.columns)
        writer.writerows([["" if value is None else plain(value) for value in row] for row in result.rows])
    else:
        numbers = [name for name, first in zip(result.columns, _first(result), strict=True) if _is_number(first)]
        output.table(result.columns, result.rows, right=numbers)
        output.line(f"({rows(len(result.rows))})", "dim")


def _first(result: Result) -> Sequence[object]:
    return result.rows[0] if result.rows else [None] * len(result.columns)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _distinct(columns: Sequence[str]) -> list[str]:
    """Two columns may have one name, two members of an object may not."""
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names:
            number += 1
            name = f"{column}_{number}"
        names.append(name)
    return names
