"""Keys of deleted rows on MariaDB: where much has expired they are read and locked before the rows are deleted."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.conformance.harness import Harness
from tests.conformance.test_ledger_keys import KEYS, number_stored, on_record


@pytest.mark.parametrize("how", ["inserted", "locked"])
def test_other_sessions_between_the_look_and_the_delete(h: Harness, how: str) -> None:
    """A row that comes between would go without leaving its key; one that is locked is not waited for."""
    h.events()
    h.sql(f"ALTER TABLE events SET ({KEYS}, ttl_delete_batch_size = 300, ttl_adaptive = 'off')")
    h.insert(*((number, h.at(days=-2)) for number in range(1, 4001, 2)))
    asked, came = 0, list[int]()

    def after(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        nonlocal asked
        if "group_concat" not in statement:
            return
        asked += 1
        if how == "inserted" and asked == 2:
            with h.client() as other:
                came.append(int(other.exec_driver_sql("SELECT min(id) + 1 FROM events").scalar_one()))
                other.exec_driver_sql(f"INSERT INTO events (id, ts) VALUES ({came[0]}, {h.at(days=-2)})")

    event.listen(Engine, "after_cursor_execute", after)
    try:
        with h.client() as client:
            if how == "locked":
                client.exec_driver_sql("BEGIN")
                client.exec_driver_sql("SELECT * FROM events WHERE id = 3001 FOR UPDATE")
            job = h.run_one()
            assert h.ids() == ([3001] if how == "locked" else []) and job.counts.skipped == len(h.ids())
            client.exec_driver_sql("ROLLBACK")
        h.run("events")
    finally:
        event.remove(Engine, "after_cursor_execute", after)
    assert h.ids() == []
    if h.owner.engine.flavour.is_mariadb:  # type: ignore[attr-defined]
        assert asked > 2 and len(came) == (how == "inserted")
    assert number_stored(h) == 2000 + len(came)
    assert on_record(h, 1, 2, 1999, 3001, 3999, 4001, *came) == [1, 1999, 3001, 3999, *came]
    assert h.owner.verify_ledger().holds
