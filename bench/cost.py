"""What having TTL costs the application: writes to a table with a managed column, against the bare table."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from time import perf_counter

from lapse.app import Lapse
from lapse.bench import BenchTable
from lapse.bench.measure import Progress

BULK_ROWS = 100_000
SINGLE_ROWS = 1_000
VARIANTS = ("bare", "expires_at", "managed")
"""Without TTL; with a column that the application fills itself; with Lapse's column and triggers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Rows per second, the median of the rounds; `verb` is what was done."""

    verb: str
    variant: str
    rate: float


def cost(table: BenchTable, *, rounds: int, progress: Progress) -> list[Cost]:
    rates: dict[tuple[str, str], list[float]] = {}
    for number in range(1, rounds + 1):
        for variant in random.sample(VARIANTS, len(VARIANTS)):
            for verb, rate in _one(table, variant).items():
                rates.setdefault((verb, variant), []).append(rate)
            progress(f"round {number}: cost of writes, {variant}")
    return [Cost(verb=verb, variant=variant, rate=statistics.median(taken)) for (verb, variant), taken in rates.items()]


def _one(table: BenchTable, variant: str) -> dict[str, float]:
    name = f"{table.name}_cost"
    table.shape = type(table.shape)(rows=BULK_ROWS)
    own, value = (
        (f", expires_at {table.types['time']}", ", '2037-01-01 00:00:00'") if variant == "expires_at" else ("", "")
    )
    key = "id INTEGER" if table.types["bigint"] == "INTEGER" else "id BIGINT"
    body = "VARCHAR(250)" if "VARCHAR" in table.types["body"] else "TEXT"
    ttl = " WITH (ttl_expire_after = '30 days')" if variant == "managed" else ""
    column = ", expires_at" if own else ""
    with Lapse(table.lapse_url) as database, table.cursor() as cursor:
        database.execute(f"DROP TABLE IF EXISTS {name}")
        database.execute(f"CREATE TABLE {name} ({key} PRIMARY KEY, body {body}{own}){ttl}")
        insert = f"INSERT INTO {name} (id, body{column})"
        instant = value if "'" not in value or table.types["time"] != "TIMESTAMPTZ" else value + "::timestamptz"
        statements = {
            "bulk insert": (BULK_ROWS, [f"{insert} SELECT n, 'some text'{instant} FROM {table.numbered()}"]),
            "bulk update": (BULK_ROWS, [f"UPDATE {name} SET body = 'other text'"]),
            "single inserts": (
                SINGLE_ROWS,
                [f"{insert} VALUES ({BULK_ROWS + n}, 'x'{value})" for n in range(1, SINGLE_ROWS + 1)],
            ),
            "single updates": (
                SINGLE_ROWS,
                [f"UPDATE {name} SET body = 'y' WHERE id = {BULK_ROWS + n}" for n in range(1, SINGLE_ROWS + 1)],
            ),
        }
        found = {}
        for verb, (rows, texts) in statements.items():
            started = perf_counter()
            for text in texts:
                cursor.execute(text)
            found[verb] = rows / (perf_counter() - started)
        database.execute(f"DROP TABLE {name}")
    return found
