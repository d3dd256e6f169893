"""What people and Prometheus look at takes as many statements with thirty policies as with three; no lock delays it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from prometheus_client import generate_latest

from lapse.app import Lapse
from lapse.catalog import jobs, policies
from lapse.console import Options
from lapse.console.dashboard import Dashboard
from lapse.console.session import Signer
from lapse.model.job import KeyRange, Path, PathKind
from tests.conformance.harness import Harness
from tests.conformance.test_idle import counted, many

FEW, MANY = 3, 30


def _status(db: Lapse) -> None:
    db.comments()
    db.health()


def _metrics(db: Lapse) -> None:
    generate_latest(db.metrics().registry)


def _overview(db: Lapse) -> None:
    dashboard = Dashboard(db, db.metrics(), Options(host="127.0.0.1", port=1, token=None), signer=Signer("x"))
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
            jobs.create_job(
                connection, table_id=physical.id, stored=stored, name=name, cutoff=now, fingerprint="", now=now,
                path=Path(kind=PathKind.PHYSICAL, evidence=""), ranges=[KeyRange()], owner=None,
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
    with h.client() as client:
        for number in range(1, MANY):
            client.exec_driver_sql(
                f"CREATE TABLE t{number} (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant})"
            )
    _add(h.owner, range(1, FEW))
    few = _statements(db)
    _add(h.owner, range(FEW, MANY))
    assert _statements(db) == few


def test_a_locked_table_keeps_no_look_waiting(h: Harness) -> None:
    many(h, 2)
    h.insert(*((number, h.at(days=1)) for number in range(1, 31)), table="t0")
    db = h.db
    with h.locked("t0"):
        for look in LOOKS.values():
            look(db)
        assert b"lapse_ttl_database_up 1.0" in generate_latest(db.metrics().registry)
