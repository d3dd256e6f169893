"""Every type of MariaDB and MySQL goes into a file and comes back, value for value."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from typing import Any

import pymysql
import pytest

from lapse.app import Lapse
from lapse.engines.mysql import cells, packets
from lapse.errors import Unsupported
from lapse.model.table import TableName
from tests.backends.mariadb import MariadbServer
from tests.conformance.harness import Harness
from tests.unit.archive.duck import ask
from tests.unit.archive.there_and_back import move

VALUES = {
    "tinyint": ["-128", "127"],
    "tinyint(1)": ["2"],
    "smallint unsigned": ["65535"],
    "mediumint": ["-8388608"],
    "int": ["-2147483648"],
    "int(8) unsigned zerofill": ["42", "4294967295"],
    "bigint": ["-9223372036854775808"],
    "bigint unsigned": ["18446744073709551615"],
    "float": ["0.1", "16777216", "1.17549e-38", "3.40282e38", "-0e0", "1.1754943e-38"],
    "double": ["0.1", "5e-324", "1.7976931348623157e308", "1e-5", "123456789.123456789"],
    "decimal(10,2)": ["-99999999.99", "1.10"],
    "decimal(38,0)": ["99999999999999999999999999999999999999"],
    "decimal(65,30)": ["12345678901234567890123456789012345.000000000000000000000000000001"],
    "bit(1)": ["b'1'"],
    "bit(20)": ["b'10000000000000000001'"],
    "bit(64)": ["18446744073709551615"],
    "date": ["'0000-00-00'", "'2026-11-17'", "'9999-12-31'", "'1000-01-01'", "'2026-00-00'", "'2026-02-31'"],
    "datetime": ["'0000-00-00 00:00:00'", "'2026-11-17 01:02:03'"],
    "datetime(6)": ["'0000-00-00 00:00:00'", "'9999-12-31 23:59:59.999999'", "'2026-02-30 01:02:03.1'"],
    "timestamp(3) null": ["'0000-00-00 00:00:00'", "'1970-01-01 00:00:01'", "'2026-03-29 01:30:00.125'"],
    "time": ["'838:59:59'", "'-838:59:59'"],
    "time(6)": ["'-00:00:00.000001'", "'100:00:00.5'"],
    "year": ["0", "1901", "2155"],
    "char(5)": ["''", "'ab'"],
    "varchar(20)": ["''", "'Grüße 🐬  '", "'a\\0b'", "'NULL'"],
    "varchar(20) character set latin1": ["'Grüße'", "0x8190"],
    "varchar(20) character set utf16": ["'Grüße 🐬'"],
    "longtext": ["'a\\n,\"b'"],
    "binary(4)": ["'ab'"],
    "varbinary(20)": ["''", "0x00ff5c27"],
    "blob": ["0x00ff"],
    "enum('a','b''c','')": ["'a'", "'b''c'", "''"],
    "set('a','b')": ["''", "'a,b'"],
    "json": ['\'{"b": 1, "a": [1.50, null, "ü"]}\'', "'null'"],
    "geometry": ["ST_GeomFromText('POINT(1 2)', 4326)", "ST_GeomFromText('LINESTRING(0.1 0,1 1)')"],
    "point": ["ST_GeomFromText('POINT(0.1 -1e-300)')"],
}
MARIADB = {
    "uuid": ["'123e4567-e89b-12d3-a456-426655440000'"],
    "inet4": ["'1.2.3.4'"],
    "inet6": ["'::ffff:1.2.3.4'"],
}
BINARY = ("bit", "binary", "varbinary", "blob", "geometry", "point")
MODE = "SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'"


def test_every_type_comes_back_value_for_value(h: Harness, server: MariadbServer, tmp_path: Path) -> None:
    values = VALUES | (MARIADB if type(server) is MariadbServer else {})
    database = h.url.rpartition("/")[2]
    names = {f"c`{number}%": kind for number, kind in enumerate(values)}
    quoted = {name: "`" + name.replace("`", "``") + "`" for name in names}
    made = ", ".join(f"{quoted[name]} {kind}" for name, kind in names.items())
    inserts = [
        f"INSERT INTO source ({quoted[name]}) VALUES ({value})"
        for name, kind in names.items()
        for value in values[kind]
    ]
    key = "lapse_key int auto_increment primary key"
    for table in ("source", "target"):
        server.execute(f"CREATE TABLE {database}.{table} ({key}, {made})")
    server.execute(MODE, f"USE {database}", "INSERT INTO source () VALUES ()", *inserts)
    move(h, cells, tmp_path, TableName("source"), TableName("target"))
    for name, kind in names.items():
        shown = f"{quoted[name]} * 1e0" if kind in ("float", "double") else quoted[name]
        shown = shown if kind.startswith(BINARY) else f"CAST({shown} AS CHAR)"
        asked = f"SELECT lapse_key, HEX({shown}) FROM {database}.TABLE ORDER BY 1"
        there, back = (server.execute(MODE, asked.replace("TABLE", table)) for table in ("source", "target"))
        assert there == back, kind
    assert ask(tmp_path, "SELECT count(*) FROM archive")[1] == [[1 + len(inserts)]]


@pytest.mark.parametrize("kind", ["varchar(10) character set sjis", "enum('a') character set gbk"])
def test_text_in_a_character_set_that_does_not_come_back_is_refused(h: Harness, kind: str) -> None:
    h.sql(f"CREATE TABLE source (id int, a {kind})")
    with h.db.engine.transaction() as connection, pytest.raises(Unsupported, match=r"column 'a'.*character set"):
        cells.columns(connection, TableName("source"))


def test_a_connection_with_another_character_set_reads_nothing(h: Harness, server: MariadbServer) -> None:
    h.sql("CREATE TABLE source (a int)")
    with Lapse(f"{h.url}?charset=latin1") as db, db.engine.transaction() as connection:
        named = cells.columns(connection, TableName("source"))
        with pytest.raises(Unsupported, match="charset=utf8mb4"):
            list(cells.read(connection, TableName("source"), named))


def test_zero_in_a_column_that_counts_stays_zero(h: Harness, tmp_path: Path) -> None:
    h.sql("CREATE TABLE source (id int primary key)")
    h.sql("CREATE TABLE target (id int auto_increment primary key)")
    h.sql("INSERT INTO source VALUES (0), (7)")
    move(h, cells, tmp_path, TableName("source"), TableName("target"))
    assert h.rows("SELECT id FROM target ORDER BY id") == [(0,), (7,)]


def test_floats_come_back_with_all_their_bits(h: Harness, tmp_path: Path) -> None:
    h.sql("CREATE TABLE source (f float, d double)")
    h.sql("CREATE TABLE target (f float, d double)")
    random = Random(7)
    for _ in range(300):
        single = struct.unpack("f", struct.pack("f", random.uniform(-1, 1) * 10 ** random.randint(-37, 37)))[0]
        double = random.uniform(-1, 1) * 10 ** random.randint(-307, 307)
        h.sql(f"INSERT INTO source VALUES ({single!r}, {double!r})")
    move(h, cells, tmp_path, TableName("source"), TableName("target"))
    asked = "SELECT CAST(f * 1e0 AS CHAR), CAST(d AS CHAR) FROM {} ORDER BY d"
    assert h.rows(asked.format("source")) == h.rows(asked.format("target"))


LENGTHS = (0, 1, 250, 251, 252, 65_535, 65_536, 70_000)
"""Around those at which the server writes the length of a cell in another way."""


def test_cells_of_every_length_are_read(h: Harness) -> None:
    h.sql("CREATE TABLE source (id int primary key, a longtext, b longblob, c int)")
    for number, length in enumerate(LENGTHS):
        h.sql(f"INSERT INTO source VALUES ({2 * number}, repeat('ü', {length}), repeat(0xff, {length}), NULL)")
        h.sql(f"INSERT INTO source VALUES ({2 * number + 1}, NULL, NULL, {number})")
    found = [row for batch in _read(h, "true ORDER BY id") for row in zip(*batch, strict=True)]
    assert found == [
        row
        for number, length in enumerate(LENGTHS)
        for row in (
            (str(2 * number), "ü" * length, b"\xff" * length, None),
            (str(2 * number + 1), None, None, str(number)),
        )
    ]


def test_a_row_that_is_larger_than_a_packet_is_read_between_others(h: Harness, server: MariadbServer) -> None:
    large = 17 << 20
    ((before,),) = server.execute("SELECT @@GLOBAL.max_allowed_packet")
    server.execute(f"SET GLOBAL max_allowed_packet = {64 << 20}")
    try:
        with Lapse(h.url) as db:
            db.execute("CREATE TABLE source (id int primary key, a longtext, b longblob)")
            db.execute("INSERT INTO source VALUES (1, 'x', 'y')")
            db.execute(f"INSERT INTO source VALUES (2, repeat('a', {large}), repeat('b', 20))")
            db.execute("INSERT INTO source VALUES (3, 'z', repeat('c', 300))")
            with db.engine.transaction() as connection:
                named = cells.columns(connection, TableName("source"))
                batches = [
                    [column.to_pylist() for column in batch]
                    for batch in cells.read(connection, TableName("source"), named, "true ORDER BY id")
                ]
                assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    finally:
        server.execute(f"SET GLOBAL max_allowed_packet = {before}")
    found = [row for batch in batches for row in zip(*batch, strict=True)]
    assert found == [("1", "x", b"y"), ("2", "a" * large, b"b" * 20), ("3", "z", b"c" * 300)]


def test_rows_come_in_batches_of_bounded_size_and_the_rest_can_be_left(h: Harness) -> None:
    h.sql("CREATE TABLE source (id int primary key, a longtext)")
    for number in range(6):
        h.sql(f"INSERT INTO source VALUES ({number}, repeat('x', {packets.BATCH_BYTES // 2 + 1}))")
    assert [len(batch[0]) for batch in _read(h, "true ORDER BY id")] == [2, 2, 2]
    with h.db.engine.transaction() as connection:
        named = cells.columns(connection, TableName("source"))
        reading = cells.read(connection, TableName("source"), named, "true ORDER BY id")
        assert next(reading)[0].to_pylist() == ["0", "1"]
        reading.close()
        assert connection.exec_driver_sql("SELECT count(*) FROM source").scalar() == 6


def test_no_row_is_an_empty_result(h: Harness) -> None:
    h.sql("CREATE TABLE source (id int primary key)")
    assert _read(h, "true") == []


def test_an_error_after_the_first_rows_is_told_and_the_connection_goes_on(h: Harness) -> None:
    h.sql("CREATE TABLE source (id int primary key, a varchar(20))")
    h.sql("INSERT INTO source VALUES (1, 'x'), (2, 'y'), (3, 'z')")
    with h.db.engine.transaction() as connection:
        named = cells.columns(connection, TableName("source"))
        # The third row cannot be computed, after two were sent.
        with pytest.raises(pymysql.err.DatabaseError, match="out of range"):
            list(cells.read(connection, TableName("source"), named, "id < 3 OR exp(id * 1000) > 0"))
        assert connection.exec_driver_sql("SELECT count(*) FROM source").scalar() == 3


def test_a_connection_that_is_killed_while_rows_come_tells_so(h: Harness, server: MariadbServer) -> None:
    h.sql("CREATE TABLE source (id int primary key, a longtext)")
    for number in range(12):
        h.sql(f"INSERT INTO source VALUES ({number}, repeat('x', {packets.BATCH_BYTES}))")
    with pytest.raises(pymysql.err.OperationalError), h.db.engine.transaction() as connection:
        named = cells.columns(connection, TableName("source"))
        thread = connection.exec_driver_sql("SELECT connection_id()").scalar_one()
        reading = cells.read(connection, TableName("source"), named, "true ORDER BY id")
        next(reading)
        server.execute(f"KILL {int(thread)}")
        list(reading)
    assert h.rows("SELECT count(*) FROM source") == [(12,)]


def test_rows_are_read_by_column(h: Harness) -> None:
    """And not cell by cell, as they are where the driver has changed."""
    h.sql("CREATE TABLE source (id int primary key)")
    with h.db.engine.transaction() as connection:
        assert packets.can_read(connection.connection.driver_connection)


def _read(h: Harness, where: str) -> list[list[list[Any]]]:
    with h.db.engine.transaction() as connection:
        named = cells.columns(connection, TableName("source"))
        found = cells.read(connection, TableName("source"), named, where)
        return [[column.to_pylist() for column in batch] for batch in found]
