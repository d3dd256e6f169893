"""A catalog that an older Lapse left in a MariaDB database goes on where it stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from lapse.errors import PolicyConflict
from lapse.model.job import JobStatus
from tests.conformance.harness import Harness
from tests.tools import required

VERSION_2 = Path(__file__).with_name("version-2.sql")
"""A dump: a managed column, a column with an interval, a paused expression, one job."""


@pytest.fixture
def old(h: Harness) -> Harness:
    if not h.features.replaces_tables:
        pytest.skip("the dump is one of MariaDB's")
    url = make_url(h.url)
    client = [required("mariadb"), "--no-defaults", "-h", str(url.host), "-P", str(url.port), "-u", str(url.username)]
    subprocess.run([*client, str(url.database)], input=VERSION_2.read_bytes(), check=True)
    return h


def test_upgrade_from_version_2(old: Harness) -> None:
    known = {stored.table.name: stored for stored in old.db.policies()}
    assert set(known) == {"sessions", "events", "mails"}
    assert known["mails"].policy.pause
    assert known["events"].armed is None
    (job,) = old.db.history()
    assert (job.table.name, job.status, job.counts.deleted) == ("events", JobStatus.FINISHED, 1)
    assert old.db.settings()["lapse_mode"] == "fast"
    assert old.run("events").deleted == 1
    assert old.run("sessions").complete
    assert old.ids() == [2]
    assert old.db.policy("events").armed is not None
    old.db.resume("mails")
    assert old.run("mails").deleted == 1
    assert old.ids("mails") == [1]


def test_what_the_policy_reads_is_protected_from_the_first_statement_on(old: Harness) -> None:
    with pytest.raises(PolicyConflict):
        old.sql("ALTER TABLE events DROP COLUMN at")
    old.sql("ALTER TABLE events ADD COLUMN more INTEGER")
