"""The archive on a table's page: what there is, and a restore after a question."""

from __future__ import annotations

import re
from pathlib import Path
from time import monotonic, sleep

import pytest

from lapse.app import Lapse
from tests.console.conftest import LOCAL, Visit, policy_id

OURS = {"Origin": LOCAL}


def _archived(database: Lapse, text: str) -> int:
    database.execute("CREATE TABLE visits (id INTEGER PRIMARY KEY, at TEXT) TTL = at + INTERVAL 1 DAY")
    database.execute(f"ALTER TABLE visits SET (ttl_archive = '{text}', ttl_guard = 'off')")
    database.execute("INSERT INTO visits VALUES (1, '2020-01-01'), (2, '2020-01-02')")
    (job,) = database.run("visits").jobs
    return job.id


@pytest.mark.parametrize("text", ["table:", "file://"])
def test_rows_of_a_job_come_back_after_a_question(
    database: Lapse, visit: Visit, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{tmp_path}")
    job = _archived(database, text if text == "table:" else f"file://{tmp_path}")
    client, table = visit(database, allow_actions=True), policy_id(database, "visits")
    assert f'hx-get="/tables/{table}/archive"' in client.get(f"/tables/{table}").text
    page = client.get(f"/tables/{table}/archive").text
    assert "2 rows" in page and f"/archive/{job}/restore" in page
    assert (str(tmp_path) if text == "file://" else "visits_archive") in page
    asked = client.get(f"/tables/{table}/archive/{job}/restore").text
    assert "Put back what this job has archived of visits?" in asked and f"Job {job}: 2 rows in" in asked
    assert database.execute("SELECT count(*) FROM visits").rows == ((0,),)
    found = re.search('name="csrf" value="([^"]+)"', asked)
    assert found is not None
    done = client.post(f"/tables/{table}/archive/{job}/restore", data={"csrf": found[1]}, headers=OURS)
    assert done.status_code == 303
    until = monotonic() + 20
    while "2 rows restored" not in client.get(f"/tables/{table}/archive").text:
        assert monotonic() < until
        sleep(0.05)
    assert database.execute("SELECT count(*) FROM visits").rows == ((2,),)
    (entry,) = [each for each in database.ledger() if each.kind == "restored"]
    assert entry.program == "lapse console"
    assert client.get(f"/tables/{table}/archive/{job}/restore").status_code == 404


def test_without_leave_one_may_look(database: Lapse, visit: Visit) -> None:
    job, table = _archived(database, "table:"), policy_id(database, "visits")
    client = visit(database)
    page = client.get(f"/tables/{table}/archive").text
    assert "visits_archive" in page and "Restore<" not in page
    assert client.get(f"/tables/{table}/archive/{job}/restore").status_code == 409
    assert client.post(f"/tables/{table}/archive/{job}/restore", headers=OURS).status_code == 403
    other = visit(database, allow_actions=True)
    assert other.post(f"/tables/{table}/archive/{job}/restore", data={"csrf": "x"}, headers=OURS).status_code == 409
    assert other.post(f"/tables/{table}/archive/{job}/restore", data={"csrf": "x"}).status_code == 403
    assert database.execute("SELECT count(*) FROM visits").rows == ((0,),)


def test_what_is_exported_is_measured(
    database: Lapse, visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{tmp_path}")
    _archived(database, f"file://{tmp_path}")
    text = visit(database).get("/metrics").text
    for name, value in (("archived_rows", "2.0"), ("export_waiting_rows", "0.0"), ("export_failing", "0.0")):
        assert re.search(rf"lapse_(ttl_)?{name}{{[^}}]*}} {re.escape(value)}", text), name
    assert "last_export_timestamp_seconds{" in text and "archived_bytes{" in text
