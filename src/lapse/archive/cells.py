"""Cells of a database to Arrow batches and back, exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lapse.archive.column import ArchivedColumn
from lapse.archive.loading import arrow
from lapse.archive.storage import Cell

EXACT = "lapse_exact"
"""The column with the values that the native type of their column cannot hold: a JSON object of texts by column name,
NULL in most rows."""


def exact_name(columns: Sequence[ArchivedColumn]) -> str:
    """A name that no column of the table has, whatever its case."""
    taken, name = {column.name.lower() for column in columns}, EXACT
    while name in taken:
        name += "_"
    return name


def schema(columns: Sequence[ArchivedColumn]) -> Any:
    exact = arrow().field(exact_name(columns), arrow().string(), metadata={"lapse.type": "odd values as JSON"})
    return arrow().schema([*(column.arrow_field for column in columns), exact])


def encode(columns: Sequence[ArchivedColumn], cells: Sequence[Any]) -> Any:
    """A record batch of cells that are given by column."""
    arrays: list[Any] = []
    odd: dict[int, dict[str, str]] = {}
    for column, values in zip(columns, cells, strict=True):
        array, beside = column.encode(values)
        arrays.append(array)
        for row, text in beside.items():
            odd.setdefault(row, {})[column.name] = text
    count = len(arrays[0]) if arrays else 0
    exact = [json.dumps(odd[row], ensure_ascii=False) if row in odd else None for row in range(count)]
    arrays.append(arrow().array(exact, arrow().string()))
    return arrow().record_batch(arrays, schema=schema(columns))


def decode(columns: Sequence[ArchivedColumn], batch: Any) -> list[list[Cell]]:
    """The cells of a batch, by column."""
    odd: dict[str, dict[int, str]] = {column.name: {} for column in columns}
    exact = batch.column(len(columns))
    if exact.null_count < len(exact):
        for row, text in enumerate(exact.to_pylist()):
            for name, value in (json.loads(text) if text else {}).items():
                odd[name][row] = value
    return [column.decode(batch.column(index), odd[column.name]) for index, column in enumerate(columns)]
