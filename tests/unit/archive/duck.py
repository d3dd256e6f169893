"""What DuckDB reads in a folder, in a process of its own: it complains about objects that pytest keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_CODE = """
import duckdb, json, sys
found = duckdb.sql(sys.argv[1])
print(json.dumps([dict(zip(found.columns, map(str, found.types))), found.fetchall()], default=str))
"""


def ask(folder: Path | str, query: str) -> tuple[dict[str, str], list[list[Any]]]:
    """The types and the rows of a query on `archive`, as the user of a folder would write it."""
    source = f"WITH archive AS (FROM read_parquet('{folder}/**/*.parquet', hive_partitioning = true)) {query}"
    result = subprocess.run([sys.executable, "-c", _CODE, source], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    types, rows = json.loads(result.stdout)
    return types, rows
