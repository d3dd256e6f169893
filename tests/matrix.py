"""`make matrix`: the conformance suite and the engine's own tests on every server that README names.

`python -m tests.matrix [NAME …]` runs them all, or the named ones, and writes a table of results into docs/engines.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from xml.etree import ElementTree

from tests.backends.packages import PACKAGES, POSTGRES, fetch

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"
BEGIN, END = "<!-- matrix: written by make matrix -->", "<!-- end of matrix -->"


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """`backend` is its name in `tests.backends.BACKENDS`; `package` what has to be fetched."""

    title: str
    backend: str
    tests: tuple[str, ...]
    package: str | None = None
    environment: dict[str, str] = field(default_factory=dict)


def _postgres(title: str, name: str) -> Server:
    programs = str(POSTGRES[name].programs)
    return Server(
        title=title,
        backend="postgres-given",
        tests=("tests/conformance", "tests/postgres"),
        package=name,
        environment={"LAPSE_TEST_POSTGRES_BIN": programs},
    )


_MYSQL = ("tests/conformance", "tests/mysql")
SERVERS = {
    "sqlite": Server(title="SQLite", backend="sqlite", tests=("tests/conformance", "tests/sqlite")),
    "postgres14": _postgres("PostgreSQL 14.24", "postgres14"),
    "postgres15": Server(title="PostgreSQL 15", backend="postgres15", tests=("tests/conformance", "tests/postgres")),
    "postgres16": _postgres("PostgreSQL 16.15", "postgres16"),
    "postgres17": _postgres("PostgreSQL 17.11", "postgres17"),
    "postgres18": Server(title="PostgreSQL 18", backend="postgres18", tests=("tests/conformance", "tests/postgres")),
    "mariadb": Server(title="MariaDB 10.11", backend="mariadb", tests=_MYSQL),
    "mariadb-11.8": Server(
        title="MariaDB 11.8",
        backend="mariadb",
        tests=_MYSQL,
        package="mariadb-11.8",
        environment={"LAPSE_TEST_MARIADB_PACKAGE": "mariadb-11.8"},
    ),
    "mysql": Server(title="MySQL 9.7", backend="mysql", tests=_MYSQL, package="mysql"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    title: str
    passed: int
    failed: tuple[str, ...]
    skipped: int
    minutes: float
    day: str

    @property
    def row(self) -> str:
        cells = (self.title, self.passed, len(self.failed), self.skipped, f"{self.minutes:.0f} min", self.day)
        return f"| {' | '.join(map(str, cells))} |"


def run(server: Server, arguments: list[str]) -> Outcome:
    if server.package is not None:
        fetch((PACKAGES | POSTGRES)[server.package])
    environment = os.environ | server.environment | {"LAPSE_TEST_ONLY": server.backend}
    began = monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *server.tests, *arguments]
        subprocess.run(pytest, env=environment, check=False)
        suites = ElementTree.parse(report).getroot().iter("testsuite")
        cases = [case for suite in suites for case in suite.iter("testcase")]
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return Outcome(
        title=server.title,
        passed=len(cases) - len(failed) - len(skipped),
        failed=tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed),
        skipped=len(skipped),
        minutes=(monotonic() - began) / 60,
        day=f"{datetime.now(UTC):%Y-%m-%d}",
    )


def write(outcomes: list[Outcome]) -> None:
    """Rows of servers that were not run stay as they are."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    known = {line.split(" | ")[0].removeprefix("| "): line for line in old.splitlines() if line.startswith("| ")}
    known |= {outcome.title: outcome.row for outcome in outcomes}
    titles = [server.title for server in SERVERS.values()]
    rows = [known[title] for title in titles if title in known]
    table = ["| server | passed | failed | skipped | took | on |", "|---|---|---|---|---|---|", *rows]
    PAGE.write_text(f"{head}{BEGIN}\n\n{chr(10).join(table)}\n\n{END}{tail}")


def main() -> int:
    names = [name for name in sys.argv[1:] if name in SERVERS] or list(SERVERS)
    arguments = [argument for argument in sys.argv[1:] if argument not in SERVERS]
    outcomes = []
    for name in names:
        outcomes.append(run(SERVERS[name], arguments))
        write(outcomes)
    for outcome in outcomes:
        print(outcome.row, *outcome.failed, sep="\n  ")
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
