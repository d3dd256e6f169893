"""Every type of PostgreSQL goes into a file and comes back, value for value."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from lapse.archive import ArchivedColumn
from lapse.engines.postgres import cells
from lapse.errors import Unsupported
from lapse.model.table import TableName
from tests.conformance.harness import Harness
from tests.unit.archive.duck import ask
from tests.unit.archive.there_and_back import move

INSTANTS = [
    "'infinity'",
    "'-infinity'",
    "'294276-12-31 23:59:59.999999Z'",
    "'4713-01-02 BC'",
    "'1883-11-18 12:03:57-04:56:02'",
    "'9999-12-31 23:59:59.999999Z'",
    "'2026-11-17 01:02:03.1Z'",
]
VALUES = {
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "0"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["4294967295"],
    "real": ["'NaN'", "'-Infinity'", "1.17549435e-38", "0.1", "'-0'", "16777217"],
    "double precision": ["'NaN'", "'Infinity'", "5e-324", "1.7976931348623157e308", "0.1", "1e-5", "'-0'"],
    "numeric": ["'NaN'", "'Infinity'", "1.10", "1e-100", "1e131071", "0.00", "-123456789012345678901234567890.5"],
    "numeric(10,2)": ["'NaN'", "1.10", "-99999999.99", "0"],
    "numeric(38,38)": ["0.00000000000000000000000000000000000001", "-0.99999999999999999999999999999999999999"],
    "numeric(50,10)": ["1234567890123456789012345678901234567890.0123456789"],
    "boolean": ["true", "false"],
    "text": ["''", "' '", "E'a,\"b\\n\\r\\t\\\\'", "'Grüße 🐘'", "'NULL'", "E'\\\\N'", "E'\\\\.'"],
    "character varying(5)": ["''", "'abc  '"],
    "character(5)": ["'ab'"],
    '"char"': ["'x'"],
    "name": ["'relation'"],
    "uuid": ["'00000000-0000-0000-0000-000000000000'", "'FFFFFFFF-ffff-ffff-ffff-ffffffffffff'"],
    "json": ['\'{"b" :  1, "a": 1.0, "a": 2}\'', "'null'", "'1e400'"],
    "jsonb": ['\'{"b": 1, "a": 1.00}\'', "'null'", "'12345678901234567890123456789'", "'\"\\u00fc\"'"],
    "xml": ["'<a b=\"c\">d</a>'", "'text'"],
    "bytea": ["'\\x'", "'\\x00ff5c'"],
    "date": ["'infinity'", "'-infinity'", "'0001-01-01'", "'4713-01-01 BC'", "'5874897-12-31'", "'2026-11-17'"],
    "time without time zone": ["'24:00:00'", "'00:00:00.000001'"],
    "time(2) without time zone": ["'12:34:56.78'"],
    "time with time zone": ["'24:00:00-15:59:59'", "'01:02:03.4+05:30'"],
    "timestamp without time zone": [each.replace("Z", "") for each in INSTANTS],
    "timestamp(0) without time zone": ["'2026-11-17 01:02:03.6'"],
    "timestamp with time zone": INSTANTS,
    "interval": ["'1 year -2 mons +3 days -04:05:06.789'", "'-178000000 years'", "'1 day'", "'24:00:00'"],
    "interval day to second(3)": ["'1 02:03:04.567'"],
    "inet": ["'192.168.1.5/24'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "macaddr8": ["'08:00:2b:01:02:03:04:05'"],
    "bit(3)": ["B'101'"],
    "bit varying": ["B''", "B'1010101'"],
    "tsvector": ["'''a b'':1A,2 c'::tsvector"],
    "tsquery": ["'a & !b:*'::tsquery"],
    "jsonpath": ["'$.a[*] ? (@ > 1)'"],
    "pg_lsn": ["'16/B374D848'"],
    "point": ["'(0.1,-1e-300)'", "'(NaN,Infinity)'"],
    "line": ["'{1,2,3}'"],
    "lseg": ["'[(0,0),(1,1)]'"],
    "box": ["'(2,2),(0,0)'"],
    "path": ["'[(0,0),(1,1)]'", "'((0,0),(1,1))'"],
    "polygon": ["'((0,0),(1,1),(0,1))'"],
    "circle": ["'<(0,0),0.1>'"],
    "int4range": ["'[1,5)'", "'empty'", "'(,)'"],
    "numrange": ["'(1.10,2.0]'"],
    "tstzrange": ["'[2026-01-01 00:00:00+00,infinity)'"],
    "datemultirange": ["'{[2026-01-01,2026-02-01), [2026-03-01,2026-04-01)}'"],
    "integer[]": ["'{}'", "'{1,NULL,3}'", "'[0:1]={1,2}'", "'{{1,2},{3,4}}'"],
    "text[]": ["ARRAY['', 'NULL', NULL, 'a,b', 'q\"x', E'\\\\']"],
    "timestamp with time zone[]": ["'{infinity,2026-01-01 00:00:00+00}'"],
    "public.mood": ["'sad'", "'ha''ppy'"],
    "public.mood[]": ["'{sad,NULL}'"],
    "public.place": ["ROW('x', 0.1, '2026-01-01 00:00:00+00')::public.place", "ROW(NULL, 'NaN', NULL)::public.place"],
    "public.place[]": ["ARRAY[ROW('x', 0.1, NULL)::public.place]"],
    "public.amount": ["1.50"],
    "public.amounts": ["'{1.50,2.00}'"],
    "public.floats": ["'[0.1,0.2)'"],
}
TYPES = (
    "CREATE TYPE public.mood AS ENUM ('sad', 'ha''ppy')",
    "CREATE TYPE public.place AS (name text, size double precision, at timestamptz)",
    "CREATE DOMAIN public.amount AS numeric(10,2) CHECK (VALUE > 0)",
    "CREATE DOMAIN public.amounts AS public.amount[]",
    "CREATE TYPE public.floats AS RANGE (subtype = float8)",
)


def test_every_type_comes_back_value_for_value(each: Harness, tmp_path: Path) -> None:
    with psycopg.connect(each.url, autocommit=True) as client:
        for statement in TYPES:
            client.execute(statement)
        kinds = [kind for kind in VALUES if kind != "xml" or _has_xml(client)]
        names = {f'C "{number}"%': kind for number, kind in enumerate(kinds)}
        quoted = {name: '"' + name.replace('"', '""') + '"' for name in names}
        made = ", ".join(f"{quoted[name]} {kind}" for name, kind in names.items())
        client.execute(f"CREATE TABLE source ({made})")
        client.execute("CREATE TABLE target (LIKE source)")
        client.execute("INSERT INTO source DEFAULT VALUES")
        for name, kind in names.items():
            for value in VALUES[kind]:
                client.execute(f"INSERT INTO source ({quoted[name]}) VALUES ({value})".encode())
        columns = move(each, cells, tmp_path, TableName("source", "public"), TableName("target", "public"))
        # Bytes as the type's own binary output has them: nothing that a text could hide.
        for name, kind in names.items():
            binary = f"COPY (SELECT {quoted[name]} FROM {{}} ORDER BY ctid) TO STDOUT (FORMAT binary)"
            there, back = (_all(client, binary.format(table)) for table in ("source", "target"))
            assert there == back, kind
    assert [column.name for column in columns] == list(names)
    assert ask(tmp_path, "SELECT count(*) FROM archive")[1] == [[1 + sum(len(VALUES[kind]) for kind in kinds)]]


def _has_xml(client: psycopg.Connection) -> bool:
    """Not every server is built with it."""
    try:
        return bool(client.execute("SELECT '<a/>'::xml").fetchall())
    except psycopg.errors.FeatureNotSupported:
        return False


def _all(client: psycopg.Connection, sql: str) -> bytes:
    with client.cursor() as cursor, cursor.copy(sql.encode()) as copy:
        return b"".join(bytes(part) for part in copy)


def test_one_column_with_nothing_in_it_keeps_its_rows(h: Harness, client: psycopg.Connection, tmp_path: Path) -> None:
    client.execute("CREATE TABLE source (a text); CREATE TABLE target (a text)")
    client.execute("INSERT INTO source VALUES (NULL), (''), (NULL), (E'\\n'), (NULL)")
    move(h, cells, tmp_path, TableName("source", "public"), TableName("target", "public"))
    assert client.execute("SELECT a FROM target").fetchall() == [(None,), ("",), (None,), ("\n",), (None,)]


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("money", "money"),
        ("regclass", "regclass"),
        ("public.price", "public.price"),
        ("public.price[]", r"public\.price\[\]"),
        ("public.cheap", "money"),
    ],
)
def test_types_that_do_not_come_back_are_refused(h: Harness, client: psycopg.Connection, kind: str, named: str) -> None:
    client.execute("CREATE TYPE public.price AS (name text, price money); CREATE DOMAIN public.cheap AS money")
    client.execute(f"CREATE TABLE source (id int, a {kind})".encode())
    with h.db.engine.transaction() as connection, pytest.raises(Unsupported, match=f"column 'a'.*{named}"):
        cells.columns(connection, TableName("source", "public"))


def test_a_cast_of_another_user_is_not_run(h: Harness, client: psycopg.Connection, tmp_path: Path) -> None:
    client.execute("CREATE TYPE public.mood AS ENUM ('sad', 'happy'); CREATE TABLE source (a public.mood)")
    client.execute("CREATE TABLE target (a public.mood); INSERT INTO source VALUES ('sad')")
    client.execute("CREATE FUNCTION public.lie(public.mood) RETURNS text LANGUAGE sql AS $$ SELECT 'happy' $$")
    client.execute("CREATE CAST (public.mood AS text) WITH FUNCTION public.lie(public.mood) AS IMPLICIT")
    move(h, cells, tmp_path, TableName("source", "public"), TableName("target", "public"))
    assert client.execute("SELECT a FROM target").fetchall() == [("sad",)]


def test_batches_are_of_bounded_size(h: Harness, client: psycopg.Connection) -> None:
    client.execute("CREATE TABLE source (a text)")
    client.execute("INSERT INTO source SELECT repeat('x', 100000) FROM generate_series(1, 150)")
    named = (ArchivedColumn(engine="postgresql", name="a", type="text"),)
    with h.db.engine.transaction() as connection:
        sizes = [len(batch[0]) for batch in cells.read(connection, TableName("source", "public"), named)]
    assert len(sizes) == 4 and sum(sizes) == 150


def test_a_page_of_an_outbox_reads_no_more_than_its_rows(h: Harness) -> None:
    """Nothing is known of a table that was filled a moment ago: left alone, the planner reads and sorts all of it."""
    h.sql("CREATE TABLE source (lapse_seq bigint primary key, lapse_job bigint, body text)")
    h.sql("INSERT INTO source SELECT n, 1, repeat('x', 200) FROM generate_series(1, 50000) n")
    with h.db.engine.transaction() as connection:
        named = cells.columns(connection, TableName("source", "public"))
        where = "COALESCE(lapse_job, 0) = 1 AND lapse_seq > 1000 ORDER BY lapse_seq LIMIT 5000"
        (batch,) = cells.read(connection, TableName("source", "public"), named, where)
        assert batch[0].to_pylist() == [str(number) for number in range(1001, 6001)]
        scans = "SELECT seq_scan, seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'source'"
        assert connection.exec_driver_sql(scans).one() == (0, 0, 5000)
