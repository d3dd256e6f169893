"""Every value of SQLite goes into a file and comes back with its type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lapse.engines.sqlite import cells
from lapse.model.table import TableName
from tests.conformance.harness import Harness
from tests.unit.archive.duck import ask
from tests.unit.archive.there_and_back import move

TYPES = ("INTEGER", "TEXT", "REAL", "BLOB", "DATETIME", "BOOLEAN", "DECIMAL(10,2)", "VARCHAR(3)", "", "ANY")
VALUES: tuple[Any, ...] = (
    "NULL",
    "0",
    "-9223372036854775808",
    "9223372036854775807",
    "1.0",
    "0.1",
    "-0.0",
    "9e999",
    "-9e999",
    "5e-324",
    "''",
    "'text ''quoted'''",
    "'42'",
    "'1.5'",
    "'2026-11-17 01:02:03'",
    "x''",
    "x'00ff'",
    "CAST(x'ff41' AS TEXT)",
    "CAST(x'610062' AS TEXT)",
    "'🪶'",
)


def test_every_value_comes_back_with_its_type(h: Harness, tmp_path: Path) -> None:
    made = ", ".join(f'"c""{number}" {kind}' for number, kind in enumerate(TYPES))
    names = [f'"c""{number}"' for number in range(len(TYPES))]
    for table in ("source", "target"):
        h.sql(f"CREATE TABLE {table} ({made})")
    for value in VALUES:
        h.sql(f"INSERT INTO source VALUES ({', '.join([value] * len(TYPES))})")
    move(h, cells, tmp_path, TableName("source"), TableName("target"))
    asked = ", ".join(f"typeof({name}), hex(CAST({name} AS BLOB))" for name in names)
    there, back = (h.rows(f"SELECT {asked} FROM {table} ORDER BY rowid") for table in ("source", "target"))
    assert there == back
    assert ask(tmp_path, "SELECT count(*) FROM archive")[1] == [[len(VALUES)]]


def test_a_strict_table_comes_back(h: Harness, tmp_path: Path) -> None:
    for table in ("source", "target"):
        h.sql(f"CREATE TABLE {table} (i INT, r REAL, t TEXT, b BLOB, a ANY) STRICT")
    h.sql("INSERT INTO source VALUES (1, 2, '3', x'04', '5'), (NULL, NULL, NULL, NULL, 6)")
    move(h, cells, tmp_path, TableName("source"), TableName("target"))
    asked = "SELECT i, r, t, b, a, typeof(a), typeof(r) FROM {}"
    assert h.rows(asked.format("source")) == h.rows(asked.format("target"))
