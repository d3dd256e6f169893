"""A catalog written by an older Lapse is brought up to date when it is first used."""

from __future__ import annotations

from pathlib import Path

import lapse
from lapse.catalog import schema
from lapse.clock import SystemClock


def _downgrade_to_1(url: str) -> None:
    """What version 1 looked like: no guard."""
    with lapse.open(url) as db, db.engine.connection() as connection:
        connection.exec_driver_sql("ALTER TABLE lapse_policy DROP COLUMN cleared_at")
        connection.exec_driver_sql("ALTER TABLE lapse_policy DROP COLUMN held")
        connection.exec_driver_sql("UPDATE lapse_meta SET value = '1' WHERE name = 'catalog_version'")


def test_upgrade_from_version_1(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    with lapse.open(url, SystemClock()) as db:
        for name in ("ran", "new"):
            db.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, ts TEXT) TTL = ts + INTERVAL 1 DAY")
        db.run("ran")
    _downgrade_to_1(url)
    with lapse.open(url) as db:
        cleared = {stored.table.name: stored.cleared_at is not None for stored in db.policies()}
        assert cleared == {"ran": True, "new": False}
        assert db.run().complete
    with lapse.open(url) as db, db.engine.connection() as connection:
        version = connection.exec_driver_sql("SELECT value FROM lapse_meta WHERE name = 'catalog_version'").scalar()
        assert version == str(schema.VERSION)
