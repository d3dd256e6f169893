"""A policy whose rows go to a real S3-compatible server, and whose secret stays where workers run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import lapse
from lapse.app import Lapse
from lapse.cli import main
from lapse.errors import ArchiveUnavailable
from lapse.model.blocked import BlockCode
from tests.backends.s3 import SECRET, S3Server

_numbers = count(1)


@pytest.fixture
def place(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"policies-{next(_numbers)}"
    s3.bucket(name)
    monkeypatch.setenv("LAPSE_ARCHIVES", s3.url(f"{name}/app"))
    return f"s3://{name}/app"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Lapse]:
    with lapse.open(f"sqlite:///{tmp_path}/app.db") as opened:
        opened.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT) TTL = at + INTERVAL 1 DAY")
        opened.execute("INSERT INTO events VALUES (1, '2020-01-01'), (2, '2020-01-02'), (3, '2090-01-01')")
        yield opened


def _ids(database: Lapse, table: str = "events") -> list[int]:
    return [row[0] for row in database.execute(f"SELECT id FROM {table} ORDER BY id").rows]


def test_rows_go_to_a_bucket_and_come_back(
    database: Lapse, place: str, s3: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute(f"ALTER TABLE events SET (ttl_archive = '{place}', ttl_guard = 'off')")
    (job,) = database.run("events").jobs
    (listed,) = database.archive("events", verify=True)
    assert (listed.archive, listed.rows, listed.files, str(listed.verdict)) == (place, 2, 1, "complete")
    for command in (["archive"], ["ledger"], ["history"], ["status"], ["doctor"]):
        main([*command, database.url])
    told = capsys.readouterr()
    assert place in told.out and SECRET not in told.out + told.err
    assert database.undo(job.id).restored == 2
    assert _ids(database) == [1, 2, 3]
    assert [path.name for path in s3.bucket(place.split("/")[2]).rglob("*") if path.is_file()] == ["_lapse_owner"]


def test_a_server_that_is_away_blocks_the_table_until_it_is_back(database: Lapse, place: str, s3: S3Server) -> None:
    database.execute(f"ALTER TABLE events SET (ttl_archive = '{place}', ttl_guard = 'off')")
    s3.stop()
    try:
        problem = str(database.run("events").exports[0].problem)
        assert "are not exported" in problem and SECRET not in problem
        assert (_ids(database), _ids(database, "events_outbox")) == ([3], [1, 2])
        database.execute("INSERT INTO events VALUES (4, '2020-01-01')")
        (skip,) = database.run("events").skipped
        assert skip.blocked is BlockCode.ARCHIVE and SECRET not in skip.reason
        with pytest.raises(ArchiveUnavailable) as caught:
            database.execute(f"ALTER TABLE events SET (ttl_archive = '{place}/other')")
        assert SECRET not in f"{caught.value} {caught.value.hint}"
    finally:
        s3.start()
    assert database.run("events").complete
    assert (_ids(database), _ids(database, "events_outbox")) == ([3], [])


def test_a_bucket_without_rights_is_refused(
    database: Lapse, place: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.add_account("outsider", "hidden-of-outsider")
    monkeypatch.setenv(
        "LAPSE_ARCHIVES", s3.url(place.removeprefix("s3://"), key="outsider", secret="hidden-of-outsider")
    )
    with pytest.raises(ArchiveUnavailable) as caught:
        database.execute(f"ALTER TABLE events SET (ttl_archive = '{place}')")
    assert "right to list, read, write and delete" in str(caught.value.hint)
    assert "hidden" not in f"{caught.value} {caught.value.hint}"
    assert database.policy("events").policy.archive is None
