"""What people and Prometheus look at takes as many statements with thirty policies as with three; no lock delays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from sqlalchemy import Connection

from lapse.app import Lapse, read_file
from lapse.catalog import new_jobs, policies
from lapse.console import ConsoleOptions
from lapse.console.dashboard import Dashboard
from lapse.console.session import Signer
from lapse.engines.base import Footprint
from lapse.model.job import KeyRange, PathKind
from lapse.model.job import Path as JobPath
from lapse.model.table import TableName
from tests.conformance.harness import Harness
from tests.conformance.test_idle import counted, many, settled

CHANCE = 4
FEW, MANY = 3, 30


def _status(db: Lapse) -> None:
    db.comments()
    db.health()


def _metrics(db: Lapse) -> None:
    generate_latest(db.metrics().registry)


def _overview(db: Lapse) -> None:
    dashboard = Dashboard(db, db.metrics(), ConsoleOptions(host="127.0.0.1", port=1, token=None), signer=Signer("x"))
    assert all(view.rows is not None for view in dashboard.overview().policies)


LOOKS: dict[str, Callable[[Lapse], None]] = {"status": _status, "metrics": _metrics, "overview": _overview}


def _add(db: Lapse, numbers: range) -> None:
    """As many policies more, each on a table of its own, with an active job that has a task.

    They are written as a declaration writes them, without the looks at the table that make thirty of those slow.
    """
    first = db.policies()[0]
    with db.catalog.writing() as connection:
        now = db.engine.now(connection)
        for number in numbers:
            name = replace(first.table, name=f"t{number}")
            stored = policies.save_policy(
                connection, name, first.policy, reloptions=(), recurrence="@hourly", source=first.source,
                fingerprint="", armed=first.armed or "", now=now,
            )  # fmt: skip
            (physical,) = policies.sync_tables(connection, stored.id, [name])
            new_jobs.create_job(
                connection, table_id=physical.id, stored=stored, name=name, cutoff=now, fingerprint="", now=now,
                path=JobPath(kind=PathKind.PHYSICAL, evidence=""), ranges=[KeyRange()], owner=None,
            )  # fmt: skip


def _statements(db: Lapse) -> dict[str, int]:
    found = {}
    for name, look in LOOKS.items():
        look(db)
        with counted(db) as statements:
            look(db)
        found[name] = len(statements)
    return found


def test_no_look_grows_with_the_policies(h: Harness) -> None:
    many(h, 1)
    db = h.db
    _create(h, range(1, MANY))
    _add(h.owner, range(1, FEW))
    few = _statements(db)
    _add(h.owner, range(FEW, MANY))
    assert _statements(db) == few


def _create(h: Harness, numbers: range) -> None:
    with h.client() as client:
        for number in numbers:
            client.exec_driver_sql(
                f"CREATE TABLE t{number} (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})"
            )


def _add_idle(h: Harness, numbers: range) -> None:
    """As many policies more that have had their job, each on a table of its own."""
    _create(h, numbers)
    db = h.owner
    first = db.policies()[0]
    with db.catalog.writing() as connection:
        now = db.engine.now(connection)
        for number in numbers:
            name = replace(first.table, name=f"t{number}")
            stored = policies.save_policy(
                connection, name, first.policy, reloptions=(), recurrence="@hourly", source=policies.FILE,
                fingerprint="", armed=first.armed or "", now=now,
            )  # fmt: skip
            (physical,) = policies.sync_tables(connection, stored.id, [name])
            policies.set_next_run(connection, physical.id, now + timedelta(hours=1))


def test_one_due_table_among_many_costs_what_it_costs_alone(h: Harness, tmp_path: Path) -> None:
    many(h, 1)
    scheduler = settled(h)
    (tmp_path / "lapse.toml").write_text(
        "".join(
            f"[tables.t{number}]\nttl_expiration_expression = 'ts'\nttl_grace = '0 seconds'\n" for number in range(MANY)
        ),
        encoding="utf-8",
    )
    file = read_file(tmp_path / "lapse.toml")

    def round_with_one_due() -> None:
        h.owner.request_run("t0")
        assert len(scheduler.run_once(patient=True).jobs) == 1

    def plan_without_changes(count: int) -> None:
        plan = h.owner.plan(replace(file, tables=file.tables[:count]))
        assert (plan.changes, plan.problems, plan.unchanged) == ((), (), count)

    taken = []
    for begin, end in ((1, FEW), (FEW, MANY)):
        _add_idle(h, range(begin, end))
        round_with_one_due()
        scheduler.run_once(patient=True)
        with counted(h.db) as due:
            round_with_one_due()
        with counted(h.owner) as planned:
            plan_without_changes(end)
        taken.append((len(due), len(planned)))
    (first_due, first_planned), (due_among_many, planned_among_many) = taken
    assert planned_among_many == first_planned
    # Questions that are asked once a second, as that for the gauges, may fall into one of the rounds.
    assert due_among_many <= first_due + CHANCE < first_due + (MANY - FEW)


def test_a_locked_table_keeps_no_look_waiting(h: Harness) -> None:
    many(h, 2)
    h.insert(*((number, h.at(days=1)) for number in range(1, 31)), table="t0")
    db = h.db
    with h.locked("t0"):
        for look in LOOKS.values():
            look(db)
        assert b"lapse_ttl_database_up 1.0" in generate_latest(db.metrics().registry)


def test_a_scrape_asks_for_sizes_only_where_the_server_counts_inserts(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On MariaDB and MySQL the server opens every table to answer, and knows no number of inserts."""
    many(h, 2)
    asked: list[int] = []
    footprints = h.db.engine.footprints

    def noted(connection: Connection, names: Sequence[TableName]) -> dict[TableName, Footprint]:
        asked.append(len(names))
        return footprints(connection, names)

    monkeypatch.setattr(h.db.engine, "footprints", noted)
    assert b"lapse_ttl_database_up 1.0" in generate_latest(h.db.metrics().registry)
    assert asked == ([2] if h.features.counts_inserts else [])
