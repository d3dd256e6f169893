"""Results on disk: one JSON file per engine, so that a part can be measured again without the rest."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.cost import Cost
from bench.foreground import Felt
from lapse.bench import Measurement

FOLDER = Path(__file__).parents[1] / "docs" / "performance"
NAMES = {"postgres": "PostgreSQL", "mariadb": "MariaDB", "sqlite": "SQLite"}
OTHERS = {"mysql": "MySQL", "tidb": "TiDB"}
"""Of which only a part is measured."""
BASELINE, LOOP = "one DELETE", "references' loop"
Row = dict[str, Any]


def row_of(result: Measurement) -> dict[str, Any]:
    """Rates are medians; `runs` are the seconds of every round; holds are transactions, in milliseconds."""
    low, high = result.spread
    return {
        "shape": asdict(result.shape),
        "contender": result.contender,
        "rows_per_second": round(result.rate),
        "seconds": round(result.seconds, 4),
        "spread": [round(low, 2), round(high, 2)],
        "runs": [round(run.seconds, 4) for run in result.runs],
        "expired": result.runs[0].expired,
        "hold_p50_ms": _milliseconds(result.hold(0.5)),
        "hold_p95_ms": _milliseconds(result.hold(0.95)),
        "hold_max_ms": _milliseconds(result.hold(1.0)),
    }


def _milliseconds(seconds: float) -> float | None:
    return None if seconds != seconds else round(1000 * seconds, 1)


def results_record(results: Sequence[Measurement]) -> list[dict[str, Any]]:
    return [row_of(result) for result in results]


def cost_record(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    return [{"verb": cost.verb, "variant": cost.variant, "rows_per_second": round(cost.rate)} for cost in costs]


def felt_record(felt: Sequence[Felt], rate: float, rows: int) -> dict[str, Any]:
    return {
        "transactions_per_second": round(rate),
        "expired": rows,
        "contenders": [
            {
                "contender": each.contender,
                "rows_per_second": round(each.rate),
                "p50_ms": round(1000 * each.p50, 2),
                "p95_ms": round(1000 * each.p95, 2),
                "p99_ms": round(1000 * each.p99, 2),
                "p99_by_round_ms": [round(1000 * p99, 2) for p99 in each.p99_by_round],
                "transactions": each.transactions,
            }
            for each in felt
        ],
    }


def conditions() -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


def load(engine: str) -> dict[str, Any]:
    path = FOLDER / f"{engine}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def save(engine: str, part: dict[str, Any]) -> None:
    """Parts that were measured now replace the old ones; the others stay."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(load(engine) | part, indent=1, ensure_ascii=False)
    (FOLDER / f"{engine}.json").write_text(text + "\n", encoding="utf-8")


def by_shape(found: Sequence[Row]) -> dict[str, dict[str, Row]]:
    groups: dict[str, dict[str, Row]] = {}
    for row in found:
        groups.setdefault(json.dumps(row["shape"]), {})[row["contender"]] = row
    return groups
