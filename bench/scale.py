"""What declaring many policies costs, and what looking costs as they grow: nothing is due, then one table is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter, process_time

from prometheus_client import generate_latest
from sqlalchemy import event, insert

from lapse.app import Lapse, read_file
from lapse.bench.measure import Progress
from lapse.catalog import policies, schema
from lapse.console import ConsoleOptions
from lapse.console.dashboard import Dashboard
from lapse.console.session import Signer

SIZES = (100, 1_000, 10_000)
CHUNK = 500
APPLY = "applying them, all new"
APPLIED = (100, 1_000)
LIMITS_SECONDS = {
    APPLY: 20.0,
    "status": 1.0,
    "/metrics": 1.0,
    "overview": 1.0,
    "plan without changes": 1.0,
    "one falls due": 2.0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What one look took: the best of three, so that what else the machine does counts least. Applying is done once.

    `processor_seconds` are this process's alone, which does most of the work.
    """

    name: str
    policies: int
    seconds: float
    processor_seconds: float
    statements: int


def scale(url: str, *, time_type: str, progress: Progress) -> list[Look]:
    """`time_type` is the type of the column that says when a row came to be."""
    found: list[Look] = []
    with Lapse(url) as db, tempfile.TemporaryDirectory(prefix="lapse-scale-") as folder:
        for size in APPLIED:
            found.append(_applied(db, Path(folder), size, time_type))
            progress(f"{size:,} policies applied: {found[-1].seconds:.1f} s ({found[-1].processor_seconds:.1f})")
        _create(db, range(SIZES[0]), time_type)
        _declare_first(db)
        begin = 1
        for size in SIZES:
            _create(db, range(max(begin, SIZES[0]), size), time_type)
            _add(db, range(begin, size))
            begin = size
            progress(f"{size:,} policies are declared")
            for name, look in _looks(db, Path(folder), size).items():
                found.append(_timed(db, name, size, look))
                progress(f"{size:,} policies, {name}: {found[-1].seconds:.3f} s ({found[-1].processor_seconds:.3f})")
    return found


def _looks(db: Lapse, folder: Path, size: int) -> dict[str, Callable[[], object]]:
    dashboard = Dashboard(db, db.metrics(), ConsoleOptions(host="127.0.0.1", port=1, token=None), signer=Signer("x"))
    scheduler = db.worker()._scheduler
    for _ in range(2):
        scheduler.run_once(patient=True)
    path = folder / "lapse.toml"
    path.write_text("".join(_entry(number) for number in range(size)), encoding="utf-8")
    file = read_file(path)
    first = db.policies()[0]

    def falls_due() -> None:
        db.request_run(first)
        assert not scheduler.is_idle()
        assert scheduler.run_once(patient=True).jobs

    def planned() -> None:
        assert db.plan(file).unchanged == size

    def status() -> None:
        db.comments()
        db.health()

    return {
        "an idle worker's question": scheduler.is_idle,
        "one falls due": falls_due,
        "status": status,
        "/metrics": lambda: generate_latest(db.metrics().registry),
        "overview": dashboard.overview,
        "plan without changes": planned,
    }


def _applied(db: Lapse, folder: Path, size: int, time_type: str) -> Look:
    """A file with as many entries is planned and applied; then all of it is taken away again."""
    _create(db, range(size), time_type)
    path = folder / "lapse.toml"
    path.write_text("".join(_entry(number) for number in range(size)), encoding="utf-8")
    file = read_file(path)
    found = _timed(db, APPLY, size, lambda: db.apply(db.plan(file)), rounds=1)
    path.write_text("", encoding="utf-8")
    db.apply(db.plan(read_file(path), prune=True))
    with db.engine.user_database.connect() as connection:
        for number in range(size):
            connection.exec_driver_sql(f"DROP TABLE s{number:05}")
        connection.commit()
    return found


def _timed(db: Lapse, name: str, size: int, look: Callable[[], object], *, rounds: int = 3) -> Look:
    taken, used, count = [], [], 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    for _ in range(rounds):
        count = 0
        event.listen(db.engine.database, "before_cursor_execute", note)
        started, worked = perf_counter(), process_time()
        try:
            look()
        finally:
            taken.append(perf_counter() - started)
            used.append(process_time() - worked)
            event.remove(db.engine.database, "before_cursor_execute", note)
    return Look(name=name, policies=size, seconds=min(taken), processor_seconds=min(used), statements=count)


def _entry(number: int) -> str:
    return f"[tables.s{number:05}]\nttl_expiration_expression = 'ts'\nttl_grace = '0 seconds'\nttl_time_zone = 'UTC'\n"


def _create(db: Lapse, numbers: range, time_type: str) -> None:
    with db.engine.user_database.connect() as connection:
        for number in numbers:
            connection.exec_driver_sql(f"CREATE TABLE s{number:05} (id BIGINT PRIMARY KEY, ts {time_type})")
            if number % CHUNK == 0:
                connection.commit()
        connection.commit()


def _declare_first(db: Lapse) -> None:
    db.execute(
        "ALTER TABLE s00000 SET (ttl_expiration_expression = 'ts', ttl_grace = '0 seconds', ttl_time_zone = 'UTC')"
    )
    db.run()


def _add(db: Lapse, numbers: range) -> None:
    """Policies that have had their job, as declarations write them: to declare ten thousand is not what is measured."""
    first = db.policies()[0]
    with db.catalog.writing() as connection:
        now = db.engine.now(connection)
        table = schema.policy.c
        row = connection.execute(schema.policy.select().where(table.policy_id == first.id)).mappings().one()
        known = {name: value for name, value in row.items() if name != "policy_id"} | {"source": policies.FILE}
        for start in range(numbers.start, numbers.stop, CHUNK):
            some = range(start, min(start + CHUNK, numbers.stop))
            connection.execute(insert(schema.policy), [known | {"table_name": f"s{number:05}"} for number in some])
    with db.catalog.writing() as connection:
        have = {physical.policy_id for physical in policies.list_tables(connection)}
        new = [stored.id for stored in policies.list_policies(connection) if stored.id not in have]
        at = now + timedelta(hours=3)
        rows = [{"policy_id": each, "partition_schema": "", "partition_name": "", "next_run_at": at} for each in new]
        for start in range(0, len(rows), CHUNK):
            connection.execute(insert(schema.table), rows[start : start + CHUNK])


__all__ = ["APPLY", "LIMITS_SECONDS", "SIZES", "Look", "scale"]
