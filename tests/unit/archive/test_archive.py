"""Archives in a local folder: written, published, read, verified, removed."""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from lapse.archive import Archive, ArchivedColumn
from lapse.errors import ArchiveConflict, ArchiveDamaged, ArchiveError, ArchiveUnavailable, InvalidValue
from tests.unit.archive.duck import ask
from tests.unit.archive.making import COLUMNS, NOW, header, open_folder, rows, write


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return open_folder(tmp_path)


def test_a_file_comes_back_as_it_was_written(archive: Archive) -> None:
    batches = [rows(1, 20), rows(21, 5)]
    file = archive.publish(write(archive, batches))
    assert file.path == "public.events/year=2026/month=11/day=17/job-1-1.parquet"
    with archive.read(file.path, expected=file.digest) as found:
        assert list(found.cells()) == batches
        assert found.file == file
    assert (file.rows, file.header) == (25, header())
    assert file.first == file.last == NOW - timedelta(hours=1)


def test_each_batch_is_a_row_group(archive: Archive, tmp_path: Path) -> None:
    file = archive.publish(write(archive, [rows(1, 20), rows(21, 5), [[], [], [], [], []]]))
    metadata = pq.read_metadata(tmp_path / file.path)
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [20, 5]
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_only_text_has_a_dictionary_whatever_a_column_is_called(archive: Archive, tmp_path: Path) -> None:
    named = ("a.b", "list.element", 'c"d', "note")
    kinds = ("bigint", "text", "timestamp with time zone", "text")
    columns = tuple(
        ArchivedColumn(engine="postgresql", name=name, type=kind) for name, kind in zip(named, kinds, strict=True)
    )
    cells = [["1", "2"], ["x", "x"], ["2026-11-17 10:00:00+00"] * 2, ["y", "y"]]
    path = archive.publish(write(archive, [cells], columns=columns, time_column=None)).path
    group = pq.ParquetFile(tmp_path / path).metadata.row_group(0)
    found = {
        group.column(number).path_in_schema: group.column(number).has_dictionary_page for number in range(len(named))
    }
    assert found == {"a.b": False, "list.element": True, 'c"d': False, "note": True}
    assert [batch.column(0).to_pylist() for batch in archive] == [[1, 2]]


def test_pending_files_are_seen_by_no_reader(archive: Archive, tmp_path: Path) -> None:
    archive.publish(write(archive, [rows(1, 20)]))
    write(archive, [rows(21, 20)], sequence=2)
    assert pyarrow.dataset.dataset(tmp_path, format="parquet", partitioning="hive").count_rows() == 20
    assert sum(batch.num_rows for batch in archive) == 20
    assert ask(tmp_path, "SELECT count(*), min(year), min(month), min(day) FROM archive")[1] == [[20, 2026, 11, 17]]


def test_duckdb_reads_the_types_and_the_values_that_no_type_holds(archive: Archive, tmp_path: Path) -> None:
    archive.publish(write(archive, [rows(1, 20)]))
    types, _ = ask(tmp_path, "FROM archive LIMIT 0")
    assert (types["id"], types["expires_at"], types["amount"], types["note"]) == (
        "BIGINT",
        "TIMESTAMP WITH TIME ZONE",
        "DECIMAL(10,2)",
        "VARCHAR",
    )
    odd = "SELECT id, lapse_exact->>'expires_at' FROM archive WHERE expires_at IS NULL ORDER BY id"
    assert ask(tmp_path, odd)[1] == [[10, "infinity"], [20, "infinity"]]


def test_a_column_of_the_name_of_a_folder_is_not_hidden_by_it(archive: Archive, tmp_path: Path) -> None:
    year = ArchivedColumn(engine="postgresql", name="Year", type="integer")
    with archive.begin(header(columns=(year,), time_column=None)) as pending:
        pending.write([["1815"]])
        file = archive.publish(pending.finish())
    assert "/archived_year=2026/archived_month=11/archived_day=17/" in file.path
    assert ask(tmp_path, 'SELECT "Year", archived_year FROM archive')[1] == [[1815, 2026]]


def test_a_column_of_the_name_of_the_exact_values_is_kept_apart(archive: Archive) -> None:
    names = ("lapse_exact", "LAPSE_EXACT_")
    columns = tuple(ArchivedColumn(engine="postgresql", name=name, type="date") for name in names)
    with archive.begin(header(columns=columns, time_column=None)) as pending:
        pending.write([["infinity"], ["-infinity"]])
        file = archive.publish(pending.finish())
    with archive.read(file.path) as found:
        assert list(found.cells()) == [[["infinity"], ["-infinity"]]]


@pytest.mark.parametrize(
    "table", ["_hidden", ".dot", "a/b", "../up", "a=b", "q\"uote's", "Grüße", "%41", "a b\n", "x."]
)
def test_any_name_of_a_table_is_that_of_a_folder(tmp_path: Path, table: str) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    archive = open_folder(folder)
    archive.publish(write(archive, [rows(1, 20)], table=table))
    assert archive.tables() == [table]
    assert [file.header.table for file in archive.files(table)] == [table]
    assert pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").count_rows() == 20
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


def test_a_file_that_is_full_says_so(tmp_path: Path) -> None:
    archive = open_folder(tmp_path, target_bytes=2000)
    with archive.begin(header()) as pending:
        assert not pending.is_full
        batches = 0
        while not pending.is_full:
            pending.write(rows(batches * 100, 100))
            batches += 1
        file = pending.finish()
    assert file.bytes > 2000
    assert file.bytes == (tmp_path / file.path).stat().st_size


def test_files_are_chosen_by_table_job_and_time(archive: Archive) -> None:
    for job, hour in ((1, 18), (2, 20)):
        archive.publish(write(archive, [rows(1, 10, hour=hour)], job=job))
    archive.publish(write(archive, [rows(1, 10)], table="other", job=3))
    noon = NOW.replace(hour=19)
    assert [file.header.job for file in archive.files("public.events")] == [1, 2]
    assert [file.header.job for file in archive.files(job=3)] == [3]
    assert [file.header.job for file in archive.files("public.events", since=noon)] == [2]
    assert [file.header.job for file in archive.files("public.events", until=noon)] == [1]
    assert sum(batch.num_rows for batch in archive.batches("public.events", until=noon)) == 10
    assert sum(batch.num_rows for batch in archive.batches(until=NOW.replace(hour=18))) == 0


def test_rows_of_one_file_are_chosen_by_time(archive: Archive) -> None:
    archive.publish(write(archive, [rows(1, 10, hour=18), rows(11, 10, hour=20)]))
    chosen = list(archive.batches(since=NOW.replace(hour=19), until=NOW))
    assert [batch.column("id").to_pylist() for batch in chosen] == [list(range(11, 21))]


def test_a_file_that_is_not_finished_is_removed(archive: Archive) -> None:
    with pytest.raises(RuntimeError), archive.begin(header()) as pending:
        pending.write(rows(1, 20))
        raise RuntimeError
    assert archive.pending() == []


def test_a_file_without_rows_is_not_made(archive: Archive) -> None:
    with pytest.raises(ArchiveError, match="no row"), archive.begin(header()) as pending:
        pending.finish()
    assert archive.pending() == []


def test_publishing_twice_is_publishing_once(archive: Archive, tmp_path: Path) -> None:
    file = write(archive, [rows(1, 20)])
    published = archive.publish(file)
    # As after a crash between the copy and the removal of an object.
    (tmp_path / file.path).write_bytes((tmp_path / published.path).read_bytes())
    assert archive.publish(file) == published
    assert archive.pending() == []
    assert sum(each.rows for each in archive.files()) == 20


def test_a_published_file_is_never_overwritten(archive: Archive, tmp_path: Path) -> None:
    first = archive.publish(write(archive, [rows(1, 20)]))
    before = (tmp_path / first.path).read_bytes()
    second = write(archive, [rows(1, 21)])
    with pytest.raises(ArchiveConflict, match=r"job-1-1\.parquet is another file"):
        archive.publish(second)
    assert (tmp_path / first.path).read_bytes() == before


def test_only_the_file_that_was_recorded_is_published(archive: Archive) -> None:
    recorded = write(archive, [rows(1, 20)])
    write(archive, [rows(1, 21)])
    with pytest.raises(ArchiveConflict, match="not the file that was recorded"):
        archive.publish(recorded)
    assert list(archive.files()) == []


def test_a_file_that_was_left_by_a_crash_is_written_anew(archive: Archive, tmp_path: Path) -> None:
    left = tmp_path / header().pending_path
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half of a file")
    assert archive.orphans(recorded=[]) == [header().pending_path]
    file = archive.publish(write(archive, [rows(1, 20)]))
    assert archive.orphans(recorded=[file.path]) == []
    assert archive.orphans(recorded=[]) == [file.path]


def test_removing_is_for_files_of_the_archive_only(archive: Archive, tmp_path: Path) -> None:
    file = archive.publish(write(archive, [rows(1, 20)]))
    archive.remove(file.path)
    archive.remove(file.path)
    assert list(archive.files()) == []
    for path in ("_lapse_owner", "../other.parquet", "public.events/../../x.parquet", "public.events"):
        with pytest.raises(InvalidValue, match="path"):
            archive.remove(path)


def tampered(path: Path, change: str) -> None:
    content = path.read_bytes()
    table = pq.read_table(path, partitioning=None)
    metadata = pq.read_metadata(path).metadata
    if change == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif change == "flipped":
        # Inside the values of a column: what the file tells beside them, such as their extremes, is not of its rows.
        column = pq.read_metadata(path).row_group(0).column(0)
        place = column.data_page_offset + column.total_compressed_size - 20
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
    elif change == "foreign":
        pq.write_table(pa.table({"id": [1]}), path)
    elif change == "no parquet":
        path.write_bytes(b"PAR1 hello PAR1")
    else:
        column = table.schema.get_field_index("id")
        if change == "value":
            ids = pa.array([7 if value == 23 else value for value in table.column("id").to_pylist()], pa.int64())
            table = table.set_column(column, table.schema.field("id"), ids)
        elif change == "row":
            table = table.slice(1)
        elif change == "order":
            table = table.take(list(reversed(range(len(table)))))
        elif change == "exact":
            index = table.schema.get_field_index("lapse_exact")
            table = table.set_column(index, "lapse_exact", pa.array([None] * len(table), pa.string()))
        elif change == "job":
            told = json.loads(metadata[b"lapse"]) | {"policy_version": 99}
            metadata = metadata | {b"lapse": json.dumps(told).encode()}
        elif change == "type":
            told = json.loads(metadata[b"lapse"])
            told["columns"][3]["type"] = "json"
            metadata = metadata | {b"lapse": json.dumps(told).encode()}
        with pq.ParquetWriter(path, table.schema) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({b"lapse": metadata[b"lapse"]})


CHANGES = ["cut", "flipped", "foreign", "no parquet", "value", "row", "order", "exact", "job", "type"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_was_tampered_with_gives_out_no_row(archive: Archive, tmp_path: Path, change: str) -> None:
    good = archive.publish(write(archive, [rows(1, 20)]))
    bad = archive.publish(write(archive, [rows(21, 20)], sequence=2))
    tampered(tmp_path / bad.path, change)
    with pytest.raises(ArchiveDamaged, match=r"job-1-2.parquet is damaged") as caught, archive.read(bad.path):
        pytest.fail("it was read")
    assert caught.value.path == bad.path
    found = list(archive.verify("public.events"))
    assert [(each.path, each.rows, each.problem is None) for each in found] == [
        (good.path, 20, True),
        (bad.path, 0, False),
    ]


def test_a_file_that_was_made_anew_with_its_digest_is_not_the_recorded_one(archive: Archive) -> None:
    recorded = archive.publish(write(archive, [rows(1, 20)]))
    archive.remove(recorded.path)
    archive.publish(write(archive, [rows(1, 19)]))
    (found,) = archive.verify(expected={recorded.path: recorded.digest})
    assert found.problem is not None and "not the one that was recorded" in found.problem
    with (
        pytest.raises(ArchiveDamaged, match="not the one that was recorded"),
        archive.read(recorded.path, expected=recorded.digest),
    ):
        pytest.fail("it was read")


def test_a_file_under_the_name_of_another_is_found(archive: Archive, tmp_path: Path) -> None:
    file = archive.publish(write(archive, [rows(1, 20)]))
    copy = tmp_path / file.path.replace("job-1-1", "job-1-2")
    copy.write_bytes((tmp_path / file.path).read_bytes())
    problems = [each.problem for each in archive.verify()]
    assert problems[0] is None and problems[1] is not None and "under another name" in problems[1]


def test_a_recorded_file_that_is_gone_is_named(archive: Archive) -> None:
    file = archive.publish(write(archive, [rows(1, 20)]))
    archive.remove(file.path)
    (found,) = archive.verify(expected={file.path: file.digest})
    assert found.problem is not None and found.problem.endswith("job-1-1.parquet is not there")


def test_the_digest_can_be_computed_from_the_values_alone(archive: Archive, tmp_path: Path) -> None:
    file = archive.publish(write(archive, [rows(1, 20), rows(21, 5)]))
    opened, digest = pq.ParquetFile(tmp_path / file.path), hashlib.sha256()
    for group in range(opened.num_row_groups):
        for column in opened.read_row_group(group).columns:
            values, whole = column.to_pylist(), column.cast(pa.string()) if column.type == pa.string() else column
            if whole.type == pa.string():
                for value in values:
                    digest.update((-1 if value is None else len(value.encode())).to_bytes(4, "little", signed=True))
                digest.update(b"".join((value or "").encode() for value in values))
                continue
            digest.update(bytes(value is not None for value in values))
            for value in values:
                if column.type == pa.decimal128(10, 2):
                    digest.update(int((value or 0) * 100).to_bytes(16, "little", signed=True))
                else:
                    number = pa.scalar(value, column.type).cast(pa.int64()).as_py() if value is not None else 0
                    digest.update(number.to_bytes(8, "little", signed=True))
    told = json.loads(opened.metadata.metadata[b"lapse"])
    recorded = told.pop("digest")
    digest.update(json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())
    assert recorded == f"sha256:{digest.hexdigest()}" == file.digest


def test_an_archive_belongs_to_one_database(archive: Archive, tmp_path: Path) -> None:
    archive.claim("zero")
    # Nothing was written there: what claimed it may have been undone.
    archive.claim("one")
    archive.claim("one")
    (tmp_path / "events").mkdir()
    archive.claim("one")
    with pytest.raises(ArchiveConflict, match="another database"):
        archive.claim("two")


def test_a_folder_with_something_in_it_is_not_claimed(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(ArchiveConflict, match="folders in it"):
        archive.claim("one")


def test_an_empty_folder_instead_of_the_archive_is_not_written_to(archive: Archive, tmp_path: Path) -> None:
    archive.claim("one")
    (tmp_path / "_lapse_owner").unlink()
    with pytest.raises(ArchiveUnavailable, match="does not hold the archive"):
        archive.check_owner("one")


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    archive = open_folder(tmp_path / "gone")
    for attempt in (archive.probe, archive.tables, lambda: archive.begin(header()), lambda: archive.claim("one")):
        with pytest.raises(ArchiveUnavailable, match="is not there"):
            attempt()
    assert not (tmp_path / "gone").exists()


def test_a_file_instead_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArchiveUnavailable, match="is not there"):
        open_folder(tmp_path / "file").probe()


def test_a_probe_leaves_nothing(archive: Archive, tmp_path: Path) -> None:
    archive.probe()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_rights_is_told(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    (tmp_path / "open").mkdir()
    for folder in tmp_path.parents[:3]:
        folder.chmod(0o755)
    # Everything is imported before root's rights are dropped: the checkout may be root's alone.
    code = f"""
import os, lapse.archive
lapse.archive.open('file://{tmp_path}/open').probe()
if os.geteuid() == 0:
    os.setgroups([])
    os.setuid(65534)
lapse.archive.open('file://{tmp_path}/closed').probe()
"""
    result = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False)
    assert "ArchiveUnavailable" in result.stderr and "give Lapse's account the right" in result.stderr, result.stderr
    assert list(closed.iterdir()) == []


def test_a_full_disk_is_told_and_leaves_no_published_file(tmp_path: Path) -> None:
    code = f"""
import resource
from tests.unit.archive.duck import ask
from tests.unit.archive.making import *
from pathlib import Path
archive = open_folder(Path({str(tmp_path)!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, {resource.RLIM_INFINITY}))
write(archive, [rows(n * 500, 500) for n in range(50)])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ArchiveUnavailable" in result.stderr and "make room there" in result.stderr, result.stderr
    assert list(open_folder(tmp_path).files()) == []


def test_memory_is_bounded_by_a_batch(archive: Archive) -> None:
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    peaks = []
    with archive.begin(header()) as pending:
        for number in range(30):
            pending.write(rows(number * 2000, 2000))
            peaks.append(pool.bytes_allocated() - before)
        pending.finish()
    assert peaks[-1] < 2 * peaks[2] + (1 << 20)


def test_a_header_says_what_is_wrong_with_it() -> None:
    for change, named in (
        ({"columns": ()}, "columns"),
        ({"engine": "oracle"}, "engine"),
        ({"time_column": "nope"}, "time_column"),
        ({"cutoff": NOW.replace(tzinfo=None)}, "cutoff"),
    ):
        with pytest.raises(InvalidValue, match=named):
            replace(header(), **change)
    assert header().columns == COLUMNS
