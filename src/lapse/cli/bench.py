"""`lapse bench`: how fast Lapse is on the user's own server, against the usual ways."""

from __future__ import annotations

from typing import Annotated

import typer

from lapse.bench import KEYS, Measurement, Shape, measure_here
from lapse.cli.opening import Json, Url, open_database
from lapse.cli.output import Output
from lapse.errors import UsageError

MAX_ROWS = 10_000_000


def bench(
    url: Url = None,
    rows: Annotated[int, typer.Option(min=1_000, max=MAX_ROWS, help="Rows in the scratch table.")] = 100_000,
    expired: Annotated[float, typer.Option(min=0, max=100, help="Percent of them that have expired.")] = 10.0,
    key: Annotated[str, typer.Option(help=f"The primary key: {', '.join(KEYS)}.")] = "bigint",
    indexes: Annotated[int, typer.Option(min=0, max=5, help="Secondary indexes on random values.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, max=99, help="Medians are of this many rounds.")] = 3,
    as_json: Json = False,
) -> None:
    """Compare Lapse with one DELETE, the usual LIMIT loop and the loop of the reference documents, on your server.

    Works on scratch tables named lapse_bench_… and drops them again. It does put load on the server.

    Example: `lapse bench sqlite:///app.db --rows 50000`
    """
    if key not in KEYS:
        raise UsageError(f"--key {key}: must be one of {', '.join(KEYS)}")
    output = Output()
    shape = Shape(rows=rows, expired_percent=expired, key=key, indexes=indexes)
    with open_database(url) as database:
        results = measure_here(database, [shape], rounds=rounds, progress=lambda line: output.err.print(line))
    if as_json:
        output.json([_record(each, results[0]) for each in results])
        return
    output.line(str(shape))
    columns = ("way", "rows/s", "of one DELETE", "transaction p95", "spread")
    output.table(columns, [_row(each, results[0]) for each in results], right=columns[1:])


def _row(result: Measurement, whole: Measurement) -> tuple[object, ...]:
    low, high = result.spread
    return (
        result.contender,
        f"{result.rate:,.0f}",
        f"{result.faster_than(whole):.2f}x",
        f"{1000 * result.hold(0.95):.1f} ms" if result.runs[0].holds else "-",
        f"{low:.2f} to {high:.2f}",
    )


def _record(result: Measurement, whole: Measurement) -> dict[str, object]:
    return {
        "way": result.contender,
        "rows_per_second": round(result.rate),
        "of_one_delete": round(result.faster_than(whole), 3),
        "seconds": [round(run.seconds, 4) for run in result.runs],
        "transaction_p95_ms": round(1000 * result.hold(0.95), 2) if result.runs[0].holds else None,
    }
