"""The statements that read a table's rows, each written once: for the owner's function, or to be run as they are.

Every one answers with one JSON value, or with a plan. They are put together from parts that hold whatever the table and
its policy bring along; nothing in the texts below is found by the search path.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Read(StrEnum):
    ANY = "any"
    """True if a row has expired."""
    EXTENT = "extent"
    """The first and the last address of what has expired."""
    COUNTED = "counted"
    """How many rows have expired, up to a limit, in the order of an index."""
    EXPECTED = "expected"
    """The plan of a query for what has expired."""
    PLANNED = "planned"
    """The plan of a query for all rows."""
    TOTALS = "totals"
    """[rows, expired rows, their earliest and latest expiry]."""
    FIRST = "first"
    LAST = "last"
    """The earliest and the latest expiry of what has expired, by an index."""
    EARLIEST = "earliest"
    """The earliest expiry of all rows, by an index."""
    SAMPLED_EARLIEST = "sampled earliest"
    BUCKETS = "buckets"
    """[[number of the first cutoff at which they have expired, rows, their earliest expiry]]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """SQL: `buckets` is a number for each row, `sample` a TABLESAMPLE clause or nothing."""

    table: str
    expired: str
    expiry: str
    column: str
    buckets: str
    limit: str
    sample: str


def statement(read: Read, parts: Parts) -> str:
    rows, expired, expiry = f"ONLY {parts.table}", parts.expired, parts.expiry
    one = f"SELECT pg_catalog.to_jsonb({expiry}) FROM {rows}"
    match read:
        case Read.ANY:
            return f"SELECT pg_catalog.to_jsonb(true) FROM {rows} WHERE ({expired}) IS TRUE LIMIT 1"
        case Read.EXTENT:
            return (
                "SELECT pg_catalog.jsonb_build_array(pg_catalog.min(ctid)::pg_catalog.text,"
                f" pg_catalog.max(ctid)::pg_catalog.text) FROM {rows} WHERE {expired}"
            )
        case Read.COUNTED:
            listed = f"SELECT 1 FROM {rows} WHERE {expired} ORDER BY {parts.column} LIMIT {parts.limit}"
            return f"SELECT pg_catalog.to_jsonb(pg_catalog.count(*)) FROM ({listed}) counted"
        case Read.EXPECTED:
            return f"EXPLAIN (FORMAT JSON) SELECT 1 FROM {rows} WHERE {expired}"
        case Read.PLANNED:
            return f"EXPLAIN (FORMAT JSON) SELECT 1 FROM {parts.table}"
        case Read.TOTALS:
            return (
                "SELECT pg_catalog.jsonb_build_array(pg_catalog.count(*),"
                f" pg_catalog.count(*) FILTER (WHERE {expired}), pg_catalog.min({expiry}) FILTER (WHERE {expired}),"
                f" pg_catalog.max({expiry}) FILTER (WHERE {expired})) FROM {rows}"
            )
        case Read.FIRST:
            return f"{one} WHERE {expired} ORDER BY {parts.column} LIMIT 1"
        case Read.LAST:
            return f"{one} WHERE {expired} ORDER BY {parts.column} DESC LIMIT 1"
        case Read.EARLIEST:
            there = f"{parts.column} IS NOT NULL AND ({expiry}) IS NOT NULL"
            return f"{one} WHERE {there} ORDER BY {parts.column} LIMIT 1"
        case Read.SAMPLED_EARLIEST:
            return f"SELECT pg_catalog.to_jsonb(pg_catalog.min({expiry})) FROM {rows}{parts.sample}"
        case Read.BUCKETS:
            found = (
                f"SELECT {parts.buckets} AS number, pg_catalog.count(*) AS rows, pg_catalog.min({expiry}) AS earliest"
                f" FROM {rows}{parts.sample} GROUP BY 1"
            )
            each = "pg_catalog.jsonb_build_array(number, rows, earliest)"
            return f"SELECT coalesce(pg_catalog.jsonb_agg({each}), '[]'::pg_catalog.jsonb) FROM ({found}) found"


def without_times(read: Read, found: Any) -> Any:
    """What a statement found, where the expiry it was given is not the one that was asked about."""
    match read:
        case Read.TOTALS:
            return [*found[:2], None, None]
        case Read.FIRST | Read.LAST | Read.EARLIEST | Read.SAMPLED_EARLIEST:
            return None
        case Read.BUCKETS:
            return [[*bucket[:2], None] for bucket in found]
    return found


def tablesample(percent: str) -> str:
    return f" TABLESAMPLE pg_catalog.system ({percent}) REPEATABLE (1)"
