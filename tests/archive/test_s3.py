"""Archives on a real S3-compatible server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

import lapse.archive
from lapse.archive import Archive
from lapse.errors import ArchiveConflict, ArchiveDamaged, ArchiveUnavailable, LapseError
from tests.backends.s3 import SECRET, S3Server
from tests.unit.archive.duck import ask
from tests.unit.archive.making import header, rows, write

_numbers = count(1)


@pytest.fixture
def bucket(s3: S3Server) -> Path:
    return s3.bucket(f"bucket-{next(_numbers)}")


@pytest.fixture
def archive(s3: S3Server, bucket: Path) -> Archive:
    return lapse.archive.open(s3.url(f"{bucket.name}/some/prefix"))


@contextmanager
def refused(*words: str) -> Iterator[None]:
    with pytest.raises(LapseError) as caught:
        yield
    text = f"{caught.value} {caught.value!r}"
    assert isinstance(caught.value, ArchiveUnavailable)
    assert all(word in text for word in words), text
    assert SECRET not in text


def test_a_file_comes_back_from_a_bucket(archive: Archive, bucket: Path) -> None:
    archive.probe()
    archive.claim("one")
    batches = [rows(1, 20), rows(21, 500)]
    file = archive.publish(write(archive, batches))
    assert (bucket / "some" / "prefix" / file.path).stat().st_size == file.bytes
    with archive.read(file.path, expected=file.digest) as found:
        assert list(found.cells()) == batches
    assert [each.problem for each in archive.verify()] == [None]
    assert archive.tables() == ["public.events"]
    assert sum(batch.num_rows for batch in archive) == 520
    assert ask(bucket, "SELECT count(*), min(year) FROM archive")[1] == [[520, 2026]]


def test_publishing_twice_is_publishing_once(archive: Archive, bucket: Path) -> None:
    file = write(archive, [rows(1, 20)])
    pending, copy = bucket / "some" / "prefix" / file.path, bucket / "copy"
    shutil.copy2(pending, copy)
    published = archive.publish(file)
    # As after a crash between the copy and the removal.
    pending.parent.mkdir(exist_ok=True)
    shutil.copy2(copy, pending)
    assert archive.publish(file) == published
    assert archive.pending() == []
    archive.remove(published.path)
    assert list(archive.files()) == []
    assert archive.orphans(recorded=[]) == []


def test_a_file_larger_than_a_part_of_an_upload_comes_back(s3: S3Server, bucket: Path) -> None:
    archive = lapse.archive.open(s3.url(f"{bucket.name}/p"), target_bytes=12 << 20)
    with archive.begin(header()) as pending:
        while not pending.is_full:
            cells = rows(pending.rows, 1000)
            cells[3] = [os.urandom(1500).hex() for _ in range(1000)]
            pending.write(cells)
        file = archive.publish(pending.finish())
    assert file.bytes > 12 << 20
    with archive.read(file.path, expected=file.digest) as found:
        assert sum(len(cells[0]) for cells in found.cells()) == file.rows


def test_a_bucket_that_is_not_there_is_told_and_not_made(s3: S3Server) -> None:
    archive = lapse.archive.open(s3.url("nothing-here/p"))
    for attempt in (archive.probe, archive.tables, lambda: archive.begin(header())):
        with refused("nothing-here", "create the bucket"):
            attempt()
    assert not (s3.folder / "data" / "nothing-here").exists()


def test_an_account_without_rights_is_told(s3: S3Server, bucket: Path) -> None:
    s3.add_account("stranger", "s3cr3t-of-stranger")
    archive = lapse.archive.open(s3.url(f"{bucket.name}/p", key="stranger", secret="s3cr3t-of-stranger"))
    for attempt in (archive.probe, lambda: archive.begin(header()), lambda: list(archive.files())):
        with refused("give Lapse's account the right"):
            attempt()
    assert list(bucket.iterdir()) == []


def test_a_wrong_secret_is_told_and_not_shown(s3: S3Server, bucket: Path) -> None:
    archive = lapse.archive.open(s3.url(f"{bucket.name}/p", secret="wr0ng"))
    with pytest.raises(ArchiveUnavailable, match="cannot find") as caught:
        archive.probe()
    assert "wr0ng" not in str(caught.value)


def test_a_server_that_went_away_is_told_and_comes_back(s3: S3Server, archive: Archive) -> None:
    file = write(archive, [rows(1, 20)])
    s3.stop()
    try:
        with refused("cannot"):
            archive.publish(file)
        with refused("cannot"):
            archive.begin(header(sequence=2))
    finally:
        s3.start()
    assert archive.publish(file).rows == 20


def test_an_archive_of_another_database_is_refused(archive: Archive) -> None:
    archive.claim("one")
    archive.publish(write(archive, [rows(1, 20)]))
    with pytest.raises(ArchiveConflict, match="another database"):
        archive.claim("two")


def test_an_object_that_was_changed_gives_out_no_row(archive: Archive, bucket: Path) -> None:
    file = archive.publish(write(archive, [rows(1, 20)]))
    path = bucket / "some" / "prefix" / file.path
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ArchiveDamaged, match="job-1-1"), archive.read(file.path):
        pytest.fail("it was read")
