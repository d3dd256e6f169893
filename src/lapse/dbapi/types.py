# ruff: noqa: N802, N812, DTZ006, DTZ012 - the names are PEP 249's, and so is the local zone
"""PEP 249's type objects, which compare equal to a column's type code, and its constructors."""

from __future__ import annotations

from datetime import date as Date
from datetime import datetime as Timestamp
from datetime import time as Time


class TypeObject:
    """Equal to the type codes of its kind, as psycopg (oids) and PyMySQL (field types) give them.

    The two kinds of numbers have none in common here. SQLite's columns have no type, so their code is None.
    """

    def __init__(self, name: str, *codes: int) -> None:
        self.name = name
        self.codes = frozenset(codes)

    def __eq__(self, other: object) -> bool:
        return other in self.codes if isinstance(other, int) else self is other

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<DBAPI type {self.name}>"


STRING = TypeObject("STRING", 18, 19, 25, 114, 142, 1042, 1043, 2950, 3802, 15, 245, 247, 248, 253, 254)
"""char, name, text, json, xml, bpchar, varchar, uuid, jsonb; VARCHAR, JSON, ENUM, SET, VAR_STRING, STRING."""
BINARY = TypeObject("BINARY", 17, 249, 250, 251, 252)
"""bytea; TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB."""
NUMBER = TypeObject("NUMBER", 20, 21, 23, 700, 701, 790, 1700, 0, 1, 2, 3, 4, 5, 8, 9, 13, 246)
"""int8, int2, int4, float4, float8, money, numeric; DECIMAL, TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, YEAR,
NEWDECIMAL."""
DATETIME = TypeObject("DATETIME", 1082, 1083, 1114, 1184, 1186, 1266, 7, 10, 11, 12)
"""date, time, timestamp, timestamptz, interval, timetz; TIMESTAMP, DATE, TIME, DATETIME."""
ROWID = TypeObject("ROWID", 26, 27)
"""oid, tid."""

Binary = bytes


def DateFromTicks(ticks: float) -> Date:
    """In the local zone, as PEP 249 has it."""
    return Date.fromtimestamp(ticks)


def TimeFromTicks(ticks: float) -> Time:
    return Timestamp.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> Timestamp:
    return Timestamp.fromtimestamp(ticks)


__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Date",
    "DateFromTicks",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
]
