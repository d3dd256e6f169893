"""`ttl_keep_last` as SQL, run on SQLite against a model in Python."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.engines.keep_last import Kept, kept, lasting, missing_index, surplus
from lapse.engines.values import BoundPolicy
from lapse.errors import Drift, Unsupported
from lapse.model.keep_last import KeepLast
from lapse.model.policy import Policy
from lapse.model.table import Column, Index, Table, TableKind, TableName

GROUPED = KeepLast(rows=2, by=("account",), order="made")


def table(**fields: Any) -> Table:
    values: dict[str, Any] = {
        "name": TableName("events"),
        "kind": TableKind.TABLE,
        "columns": tuple(Column(name=name, type="INTEGER") for name in ("id", "account", "made")),
        "primary_key": ("id",),
        "key": ("id",),
    }
    return Table(**values | fields)


def found(keep: KeepLast | None = GROUPED, **fields: Any) -> Kept:
    made = kept(BoundPolicy(table=table(**fields), policy=Policy(expression="made", keep_last=keep)))
    assert made is not None
    return made


def quote(name: str) -> str:
    return f'"{name}"'


def run(how: Kept, rows: list[tuple[int, int | None, int | None]]) -> set[int]:
    """Ids of the rows beyond the last ones."""
    sql = surplus(
        how,
        source='"events"',
        quote=quote,
        equal=lambda one, other: f"{one} = {other}",
        less=lambda one, other: f"({one} < {other})",
    )
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, account INTEGER, made INTEGER)")
        connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
        return {row[0] for row in connection.execute(f"SELECT id FROM events WHERE {sql}")}


values = st.none() | st.integers(0, 3)


@given(st.lists(st.tuples(values, values), max_size=30), st.integers(1, 4), st.booleans())
def test_beyond_the_last_rows_of_each_group(
    cells: list[tuple[int | None, int | None]], last: int, grouped: bool
) -> None:
    rows = [(number, account, made) for number, (account, made) in enumerate(cells, 1)]
    groups: dict[int | None, list[tuple[int, int]]] = defaultdict(list)
    for number, account, made in rows:
        if made is not None and (account is not None or not grouped):
            groups[account if grouped else None].append((made, number))
    expected = {number for members in groups.values() for _, number in sorted(members)[:-last]}
    keep = KeepLast(rows=last, by=("account",) if grouped else (), order="made")
    assert run(found(keep), rows) == expected


def test_rows_of_one_moment_are_told_apart_by_the_key() -> None:
    assert found().order == ("made", "id")
    assert run(found(), [(n, 1, 5) for n in range(1, 5)]) == {1, 2}


def test_a_key_that_names_the_group_orders_by_the_rest() -> None:
    assert found(primary_key=("account", "id")).order == ("made", "id")
    assert found(KeepLast(rows=1, by=("account",), order="id")).order == ("id",)


def test_names_of_the_users_own_that_look_like_lapses() -> None:
    columns = tuple(Column(name=name, type="INTEGER") for name in ("id", "lapse_last_0", "lapse_last"))
    how = found(KeepLast(rows=1, by=("lapse_last_0",), order="lapse_last"), columns=columns)
    sql = surplus(how, source='"t"', quote=quote, equal="{} = {}".format, less="({} < {})".format)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, lapse_last_0 INTEGER, "lapse_last" INTEGER)')
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", [(1, 1, 1), (2, 1, 2), (3, 2, 1)])
        assert connection.execute(f"SELECT id FROM t WHERE {sql}").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("index", "serves"),
    [
        (Index(name="i", columns=("account", "made", "id")), True),
        (Index(name="i", columns=("account", "made", "id", "more")), True),
        (Index(name="i", columns=("account", "made")), False),
        (Index(name="i", columns=("made", "account", "id")), False),
        (Index(name="i", columns=(None, "made", "id")), False),
        (Index(name="i", columns=("account", "made", "id"), partial=True), False),
        (Index(name="i", columns=("account", "made", "id"), ascends=False), False),
    ],
)
def test_an_index_that_leads_to_the_last_rows(index: Index, serves: bool) -> None:
    assert (found(indexes=(index,)).index is index) == serves


def test_groups_of_two_columns_in_either_order() -> None:
    columns = tuple(Column(name=name, type="INTEGER") for name in ("id", "a", "b", "made"))
    index = Index(name="i", columns=("b", "a", "made", "id"))
    how = found(KeepLast(rows=1, by=("a", "b"), order="made"), columns=columns, indexes=(index,))
    assert how.index is index
    rows = lasting(how, row="r", table="t AS lapse_last", quote=quote, equal="{} = {}".format)
    assert rows.index('"b" DESC') < rows.index('"a" DESC') < rows.index('"made" DESC') < rows.index('"id" DESC')


def test_without_an_index_the_statement_that_makes_one_is_the_hint() -> None:
    error = missing_index(found(), "CREATE INDEX …")
    assert "(account, made, id)" in str(error)
    assert error.hint == "CREATE INDEX …"


def test_what_cannot_be_kept() -> None:
    with pytest.raises(Unsupported, match="partitioned"):
        found(kind=TableKind.PARTITIONED)
    with pytest.raises(Unsupported, match="partitioned"):
        found(name=TableName("events", None, "p1"))
    with pytest.raises(Unsupported, match="no primary key"):
        found(primary_key=(), key=())
    with pytest.raises(Drift, match="no column customer"):
        found(KeepLast(rows=1, by=("customer",), order="made"))


def test_no_such_parameter_is_no_term() -> None:
    assert kept(BoundPolicy(table=table(), policy=Policy(expression="made"))) is None
