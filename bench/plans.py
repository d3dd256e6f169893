"""Which contenders run on which shapes: one base design, then one axis at a time, never the full product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.rivals import cron_rival, mariadb_rivals, postgres_rivals, sqlite_rivals
from lapse.bench import STANDARD, Contender, Shape, lapse
from lapse.bench.contenders import Timed, references_loops, timed
from lapse.bench.tables import BenchTable

Plan = Mapping[Shape, Sequence[Contender]]
LAPSE = lapse("Lapse", lapse_mode="gentle")
FAST, WHISPER = lapse("Lapse fast", lapse_mode="fast"), lapse("Lapse whisper", lapse_mode="whisper")
THREE = (*STANDARD[:2], LAPSE)
STOCK_WAYS = (*STANDARD, LAPSE, FAST)
STOCK_ROWS = 1_000_000
"""Twice what a stock server keeps in memory."""
FULL_ROWS = 10_000_000
LOOPS = Contender(name="references' loop, 4 clients", run=timed(references_loops(4)))


def _count(table: BenchTable, clock: Timed) -> None:
    with table.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table.name} WHERE {table.expired}")
        cursor.fetchall()


COUNT = Contender(name="SELECT count(*)", run=timed(_count))


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How large everything is. `rows` is the base, `axis_rows` where one property varies, `growing` where that one is
    the number of rows, `idle_rows` where there is nothing to delete."""

    rows: int
    axis_rows: int
    growing: tuple[int, ...]
    idle_rows: int
    foreground_rows: int
    kv_rows: int
    rounds: int
    slow_rivals: bool = False


SIZE = Size(
    rows=200_000,
    axis_rows=50_000,
    growing=(50_000, 100_000, 200_000),
    idle_rows=300_000,
    foreground_rows=300_000,
    kv_rows=20_000,
    rounds=3,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """`base` has every contender, `axes` vary one property, `idle` finds nothing, `skip` only at the old end of the
    table, `growing` shows the growth."""

    base: Plan
    axes: Plan
    idle: Plan
    skip: Plan
    growing: Plan
    missing: tuple[str, ...] = ()


def design(engine: str, size: Size) -> Design:
    base = Shape(rows=size.rows)
    contenders, missing = _everyone(engine, size)
    wide: dict[Shape, Sequence[Contender]] = {base: contenders}
    if engine != "sqlite":
        wide[replace(base, key="uuid")] = THREE
    return Design(
        base=wide,
        axes=_axes(engine, size),
        idle=_idle(size),
        skip=_skip(engine, size),
        growing=_growing(size),
        missing=tuple(missing),
    )


def full(engine: str) -> Plan:
    """What TiDB's proposal plans: a tenth of many rows has expired. And a log of as many, of which the oldest hundredth
    has, with an index that tells where."""
    base = Shape(rows=FULL_ROWS)
    log = replace(base, expired_percent=1.0, scattered=False)
    logs = [replace(log, expiry_index=True), *([replace(log, brin=True)] if engine == "postgres" else [])]
    return {base: THREE, **dict.fromkeys(logs, (STANDARD[0], LAPSE))}


def _everyone(engine: str, size: Size) -> tuple[list[Contender], list[str]]:
    own: list[Contender] = [*STANDARD, LAPSE]
    if engine == "postgres":
        others, missing = postgres_rivals()
        return [*own, FAST, WHISPER, LOOPS, *others, *(cron_rival() if size.slow_rivals else ())], missing
    if engine == "mariadb":
        others, missing = mariadb_rivals()
        return [*own, FAST, *others], missing
    return [*own, *sqlite_rivals()], []


def _axes(engine: str, size: Size) -> Plan:
    middle = Shape(rows=size.axis_rows)
    shapes = [replace(middle, expired_percent=percent) for percent in (1.0, 50.0, 100.0)]
    shapes += [replace(middle, indexes=indexes) for indexes in (0, 5)]
    shapes += [replace(middle, scattered=False), replace(middle, expired_percent=1.0, expiry_index=True)]
    if engine != "sqlite":
        shapes.append(replace(middle, key="composite"))
    return dict.fromkeys(shapes, THREE)


def _idle(size: Size) -> Plan:
    nothing = Shape(rows=size.idle_rows, expired_percent=0.0, indexes=0)
    return dict.fromkeys([nothing, replace(nothing, expiry_index=True)], (COUNT, LAPSE))


def _skip(engine: str, size: Size) -> Plan:
    """As in a log: what has expired lies together, and an index may tell where."""
    log = Shape(rows=size.rows, expired_percent=1.0, scattered=False)
    shapes = [log, replace(log, expiry_index=True)]
    if engine == "postgres":
        shapes.append(replace(log, brin=True))
    return dict.fromkeys(shapes, (STANDARD[0], LAPSE))


def _growing(size: Size) -> Plan:
    rows = [Shape(rows=rows) for rows in size.growing]
    shares = [Shape(rows=size.axis_rows, expired_percent=percent) for percent in (5.0, 20.0, 80.0)]
    return dict.fromkeys([*rows, *shares], THREE)
