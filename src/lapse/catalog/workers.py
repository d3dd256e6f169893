"""Workers that are alive, by their heartbeats."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, update

from lapse.catalog.schema import worker

_WORKERS = select(worker).order_by(worker.c.worker_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerRow:
    id: str
    address: str
    version: str
    started_at: datetime
    heartbeat_at: datetime
    state: str


def beat_worker(connection: Connection, row: WorkerRow) -> None:
    changed = connection.execute(
        update(worker).where(worker.c.worker_id == row.id).values(heartbeat_at=row.heartbeat_at, state=row.state)
    )
    if changed.rowcount != 1:
        connection.execute(
            insert(worker).values(
                worker_id=row.id,
                address=row.address,
                version=row.version,
                started_at=row.started_at,
                heartbeat_at=row.heartbeat_at,
                state=row.state,
            )
        )


def remove_worker(connection: Connection, worker_id: str) -> None:
    connection.execute(delete(worker).where(worker.c.worker_id == worker_id))


def forget_workers(connection: Connection, *, stale_before: datetime) -> int:
    return connection.execute(delete(worker).where(worker.c.heartbeat_at < stale_before)).rowcount


def list_workers(connection: Connection) -> list[WorkerRow]:
    return [
        WorkerRow(
            id=row.worker_id,
            address=row.address,
            version=row.version,
            started_at=row.started_at,
            heartbeat_at=row.heartbeat_at,
            state=row.state,
        )
        for row in connection.execute(_WORKERS)
    ]
