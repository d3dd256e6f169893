"""Columns keep every cell exactly: natively where the type of the file can, as text beside it where it cannot."""

from __future__ import annotations

import io
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.archive import ArchivedColumn, cells
from lapse.errors import Unsupported


def column(engine: str, type_name: str, made_of: tuple[str, ...] | None = None) -> ArchivedColumn:
    return ArchivedColumn(engine=engine, name="c", type=type_name, made_of=made_of)


def kept(given: ArchivedColumn, values: list[Any]) -> tuple[list[Any], list[Any]]:
    """What a file holds of these cells, and what comes back from the file."""
    batch, file = cells.encode([given], [values]), io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), file, compression="zstd")
    read = pq.read_table(file).combine_chunks().to_batches()[0]
    (back,) = cells.decode([given], read)
    return read.column(0).to_pylist(), back


def same(left: list[Any], right: list[Any]) -> bool:
    return [(type(value), repr(value)) for value in left] == [(type(value), repr(value)) for value in right]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
BYTES = st.binary(max_size=20)


def plain(moment: datetime) -> str:
    """As PostgreSQL writes it: no zeros at the end of the fraction."""
    text = moment.isoformat(sep=" ")
    return text.rstrip("0").rstrip(".") if "." in text else text


POSTGRES = {
    "smallint": st.integers(-(2**15), 2**15 - 1).map(str),
    "integer": st.integers(-(2**31), 2**31 - 1).map(str),
    "bigint": st.integers(-(2**63), 2**63 - 1).map(str),
    "oid": st.integers(0, 2**32 - 1).map(str),
    "boolean": st.sampled_from("tf"),
    "date": st.one_of(
        st.dates().map(date.isoformat), st.sampled_from(["infinity", "-infinity", "0044-03-15 BC", "10000-01-01"])
    ),
    "timestamp(3) without time zone": st.one_of(
        st.datetimes().map(plain),
        st.sampled_from(["infinity", "294276-12-31 23:59:59.999999", "4713-01-01 00:00:00 BC"]),
    ),
    "timestamp with time zone": st.one_of(
        st.datetimes().map(lambda moment: plain(moment) + "+00"), st.sampled_from(["infinity", "-infinity"])
    ),
    "numeric(12,4)": st.one_of(
        st.decimals(-99999999, 99999999, places=4).map(lambda value: f"{value:.4f}"), st.just("NaN")
    ),
    "numeric": st.one_of(st.decimals(allow_nan=False, allow_infinity=False).map("{:f}".format), st.just("-Infinity")),
    "bytea": BYTES.map(lambda value: "\\x" + value.hex()),
    "text": TEXTS,
    "jsonb": TEXTS,
    "integer[]": TEXTS,
}


@pytest.mark.parametrize("type_name", POSTGRES)
def test_cells_of_postgresql_come_back(type_name: str) -> None:
    @given(st.lists(st.none() | POSTGRES[type_name], min_size=1))
    def check(values: list[str | None]) -> None:
        assert kept(column("postgresql", type_name), values)[1] == values

    check()


@pytest.mark.parametrize("type_name", ["real", "double precision"])
def test_floats_of_postgresql_come_back_as_the_same_number(type_name: str) -> None:
    width: Literal[32, 64] = 32 if type_name == "real" else 64

    @given(st.lists(st.floats(width=width), min_size=1))
    def check(values: list[float]) -> None:
        stored, back = kept(column("postgresql", type_name), [f"{value!r}" for value in values])
        assert same(stored, values)
        narrow = pa.array([float(text) for text in back], pa.float32() if width == 32 else pa.float64())
        assert same(narrow.to_pylist(), values)

    check()


MYSQL = {
    "tinyint(1)": st.integers(-128, 127).map(str),
    "bigint(20) unsigned": st.integers(0, 2**64 - 1).map(str),
    "mediumint unsigned": st.integers(0, 2**24 - 1).map(str),
    "decimal(38,20)": st.decimals(-(10**17), 10**17, places=20).map("{:.20f}".format),
    "decimal(65,30)": st.decimals(-(10**34), 10**34, places=30).map("{:.30f}".format),
    "date": st.one_of(
        st.dates().map(date.isoformat), st.sampled_from(["0000-00-00", "2026-00-00", "2026-02-30", "2025-02-29"])
    ),
    "datetime(6)": st.one_of(
        st.datetimes().map(lambda moment: moment.isoformat(sep=" ", timespec="microseconds")),
        st.just("0000-00-00 00:00:00.000000"),
    ),
    "datetime": st.datetimes().map(lambda moment: moment.isoformat(sep=" ", timespec="seconds")),
    "timestamp(3)": st.one_of(
        st.datetimes().map(lambda moment: moment.isoformat(sep=" ", timespec="milliseconds")),
        st.just("0000-00-00 00:00:00.000"),
    ),
    "time(2)": st.sampled_from(["838:59:59.00", "-838:59:59.00", "00:00:00.01"]),
    "year(4)": st.one_of(st.integers(1901, 2155).map(str), st.just("0000")),
    "bit(9)": st.binary(min_size=2, max_size=2),
    "varbinary(20)": BYTES,
    "point": BYTES,
    "varchar(20) character set latin1": TEXTS,
    "char(20) character set binary": BYTES,
    "enum('a','b') character set utf8mb4": st.sampled_from(["a", "b", ""]),
    "set('a','b') character set utf8mb4": st.sampled_from(["a,b", "b", ""]),
    "json": TEXTS,
}


@pytest.mark.parametrize("type_name", MYSQL)
def test_cells_of_mysql_come_back(type_name: str) -> None:
    @given(st.lists(st.none() | MYSQL[type_name], min_size=1))
    def check(values: list[str | bytes | None]) -> None:
        assert kept(column("mysql", type_name), values)[1] == values

    check()


def test_a_number_that_is_filled_with_zeros_comes_back_as_the_number() -> None:
    assert kept(column("mysql", "int(6) unsigned zerofill"), ["000042"]) == ([42], ["42"])


ANY = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    TEXTS,
    st.sampled_from(["42", "-0", "007", "1.5", "1e3", "9.0e+999", "0x10", " 1", "1_000", "٣", "a\0b", "\udcff broken"]),
    BYTES,
)


@pytest.mark.parametrize("type_name", ["INTEGER", "TEXT", "REAL", "BLOB", "", "DATETIME", "DECIMAL(10,5)", "ANY"])
def test_any_cell_in_any_column_of_sqlite_comes_back_with_its_type(type_name: str) -> None:
    @given(st.lists(ANY, min_size=1))
    def check(values: list[Any]) -> None:
        assert same(kept(column("sqlite", type_name), values)[1], values)

    check()


@pytest.mark.parametrize(
    ("engine", "type_name", "cell", "held"),
    [
        ("postgresql", "numeric(10,2)", "1.50", Decimal("1.50")),
        ("postgresql", "date", "2026-11-17", date(2026, 11, 17)),
        ("postgresql", "bytea", "\\xff00", b"\xff\x00"),
        ("postgresql", "boolean", "f", False),
        ("mysql", "bigint unsigned", "18446744073709551615", 2**64 - 1),
        ("mysql", "datetime(3)", "2026-11-17 01:02:03.400", datetime.fromisoformat("2026-11-17T01:02:03.4")),
        ("sqlite", "DATETIME", "2026-11-17", "2026-11-17"),
        ("sqlite", "DATETIME", 1234, "1234"),
        ("sqlite", "INTEGER", "x", None),
    ],
)
def test_what_readers_of_the_file_see(engine: str, type_name: str, cell: Any, held: Any) -> None:
    assert kept(column(engine, type_name), [cell])[0] == [held]


def test_a_zone_is_that_of_utc() -> None:
    (stored,), _ = kept(column("postgresql", "timestamp with time zone"), ["2026-11-17 01:02:03+00"])
    assert stored.isoformat() == "2026-11-17T01:02:03+00:00"
    (stored,), _ = kept(column("mysql", "timestamp"), ["2026-11-17 01:02:03"])
    assert stored.isoformat() == "2026-11-17T01:02:03+00:00"


@pytest.mark.parametrize(
    ("engine", "type_name", "made_of"),
    [
        ("postgresql", "money", None),
        ("postgresql", "regclass", None),
        ("postgresql", "money[]", None),
        ("postgresql", "aclitem", None),
        ("postgresql", "public.price", ("text", "money")),
        ("postgresql", "public.unknown", None),
        ("mysql", "varchar(10) character set sjis", None),
        ("mysql", "varchar(10)", None),
        ("mysql", "vector(3)", None),
        ("mysql", "", None),
    ],
)
def test_a_type_that_is_not_kept_exactly_is_refused_by_name(
    engine: str, type_name: str, made_of: tuple[str, ...] | None
) -> None:
    with pytest.raises(Unsupported, match=r"column 'c': values of type .* cannot be kept exactly") as caught:
        column(engine, type_name, made_of)
    assert type_name in str(caught.value)


def test_types_of_users_are_kept_as_text_with_a_note() -> None:
    for given_column in (
        column("postgresql", "public.mood", ()),
        column("postgresql", "public.place", ("text", "timestamp with time zone")),
        column("postgresql", "integer[]"),
        column("postgresql", "interval day to second(3)"),
        column("postgresql", "ext.citext"),
    ):
        assert given_column.arrow_field.type == pa.string()
    assert column("postgresql", "uuid").arrow_field.metadata == {
        b"lapse.type": b"uuid",
        b"lapse.kept_as": b"text: no reader needs more",
    }


def test_many_odd_cells_among_good_ones_are_found_quickly() -> None:
    values = [
        "infinity" if row % 2 else f"2026-11-17 01:02:03.{row:06}".rstrip("0").rstrip(".") + "+00"
        for row in range(20_000)
    ]
    assert kept(column("postgresql", "timestamp with time zone"), values)[1] == values
