"""What the command line writes: values, tables, charts, result sets and reports of a run."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest

from lapse.app import RunResult
from lapse.app.result import Result
from lapse.cli import runreport
from lapse.cli.chart import axis, columns
from lapse.cli.output import Output, as_json, duration, moment, plain, printable, rows, size
from lapse.cli.resultset import CHUNK_ROWS, DRAWN_ROWS, ResultFormat, write
from lapse.model.blocked import BlockCode
from lapse.model.job import Counts, Job, JobStatus, Path, PathKind
from lapse.model.table import TableName
from lapse.runner.scheduler import Skip
from tests.unit.runner.build import NOW, job

# Values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\x00\xff", "\\x00ff"),
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (Decimal("1.50"), "1.50"),
        (date(2026, 3, 1), "2026-03-01"),
        ({"a": [1, None, "ü"]}, '{"a": [1, null, "ü"]}'),
        ([b"\x01", date(2026, 3, 1)], '["\\\\x01", "2026-03-01"]'),
        ((float("nan"), float("inf"), float("-inf")), '["NaN", "Infinity", "-Infinity"]'),
    ],
)
def test_a_value_as_text_loses_nothing(value: object, text: str) -> None:
    assert plain(value) == text


def test_json_is_valid_whatever_is_in_it() -> None:
    value = {"at": NOW, "raw": b"\x01", "share": float("nan"), "price": Decimal("1.5"), "deep": [{"x": float("inf")}]}
    assert json.loads(as_json(value)) == {
        "at": "2026-03-01T12:00:00+00:00",
        "raw": "\\x01",
        "share": "NaN",
        "price": "1.5",
        "deep": [{"x": "Infinity"}],
    }


def test_json_escapes_what_the_output_has_no_character_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(StringIO):
        encoding = "ascii"

    assert "ü" in as_json("ü")
    monkeypatch.setattr(sys, "stdout", Narrow())
    assert as_json("ü") == '"\\u00fc"'


def test_data_cannot_write_to_the_terminal() -> None:
    assert printable("a\x1b[31mb\x07") == "a\\x1b[31mb\\x07"
    assert printable("tab\tline\nü") == "tab\tline\nü"
    assert printable("\u202egnirts") == "\\u202egnirts"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 40, "3,072.0 GiB"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "less than a second"),
        (1, "1 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (90_000, "1 d 1 h"),
        (86_460, "1 d"),
    ],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_instants_are_shown_in_utc() -> None:
    assert moment(NOW.astimezone(timezone(timedelta(hours=5)))) == "2026-03-01 12:00:00"
    assert moment(NOW.replace(tzinfo=None)) == "2026-03-01 12:00:00"
    assert moment(None) == "-"
    assert moment(datetime(2026, 3, 1, 12, 0, 0, 999_999, tzinfo=UTC)) == "2026-03-01 12:00:00"


def test_one_row_and_many() -> None:
    assert (rows(1), rows(0), rows(12_345)) == ("1 row", "0 rows", "12,345 rows")


# Result sets


def written(
    form: ResultFormat, names: Sequence[str], values: Sequence[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> str:
    result = Result(columns=tuple(names), rows=tuple(values), rowcount=len(values))
    write(Output(), form, result.stream())
    return capsys.readouterr().out


def test_rows_as_csv_tell_null_from_an_empty_text(capsys: pytest.CaptureFixture[str]) -> None:
    values = [(None, "", 1), ('say "hi"', "a,b", -2), (" padded ", "two\nlines", 3)]
    text = written(ResultFormat.CSV, ("a", "b", "n"), values, capsys)
    assert text.splitlines()[:3] == ["a,b,n", ',"",1', '"say ""hi""","a,b",-2']
    assert text.splitlines()[3].startswith('" padded ",')
    assert list(csv.reader(StringIO(text)))[1:] == [
        ["", "", "1"],
        ['say "hi"', "a,b", "-2"],
        [" padded ", "two\nlines", "3"],
    ]


@pytest.mark.parametrize("count", [0, 1, CHUNK_ROWS, CHUNK_ROWS + 2])
def test_rows_as_json_are_one_array(capsys: pytest.CaptureFixture[str], count: int) -> None:
    values = [(number, None) for number in range(count)]
    found = json.loads(written(ResultFormat.JSON, ("n", "x"), values, capsys))
    assert found == [{"n": number, "x": None} for number in range(count)]


def test_columns_of_one_name_are_all_there(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(written(ResultFormat.JSON, ("id", "id_2", "id"), [(1, 2, 3)], capsys))
    assert found == {"id": 1, "id_2": 2, "id_3": 3}


def test_a_table_says_how_many_rows_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    text = written(ResultFormat.TABLE, ("id", "name"), [(1, "a"), (22, None)], capsys)
    assert "NULL" in text
    assert text.splitlines()[-1] == "(2 rows)"
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["1", "22"]


def test_a_long_table_is_written_as_it_comes_and_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    count = DRAWN_ROWS + CHUNK_ROWS + 7
    values = [(number, f"row\n{number}") for number in range(count)]
    lines = written(ResultFormat.TABLE, ("id", "text"), values, capsys).splitlines()
    assert len(lines) == count + 3
    assert lines[0].split(" | ") == [" id", "text"]
    assert lines[2] == "  0 | row\\n0"
    assert lines[-2].endswith(f"{count - 1} | row\\n{count - 1}")
    assert lines[-1] == f"({count:,} rows)"


@pytest.mark.parametrize(
    ("count", "text"), [(3, "3 rows affected\n"), (1, "1 row affected\n"), (0, "OK\n"), (-1, "OK\n")]
)
def test_a_statement_without_rows(capsys: pytest.CaptureFixture[str], count: int, text: str) -> None:
    for form, wanted in ((ResultFormat.TABLE, text), (ResultFormat.JSON, ""), (ResultFormat.CSV, "")):
        write(Output(), form, Result(rowcount=count).stream())
        assert capsys.readouterr().out == wanted


# Charts


def test_a_chart_begins_at_zero_and_ends_at_the_largest() -> None:
    lines = columns([0, 40, 20, 1], height=4)
    assert lines == ["40 ┤  ██", "   ┤  ██", "   ┤  ████", " 0 ┤  ████▁▁"]


def test_a_chart_of_nothing() -> None:
    assert columns([0, 0], height=2) == ["0 ┤", "0 ┤"]
    assert columns([], height=2) == ["0 ┤", "0 ┤"]


def test_labels_stand_below_their_columns() -> None:
    assert axis(6, [(0, "1 Mar"), (4, "5")], indent=3) == "   1 Mar   5"


# Reports of a run


def report(capsys: pytest.CaptureFixture[str], *jobs: Job, skipped: Sequence[Skip] = (), **options: bool) -> list[str]:
    runreport.show(Output(), RunResult(jobs=jobs, skipped=tuple(skipped)), **options)
    return capsys.readouterr().out.splitlines()


def ended(table: str = "events", status: JobStatus = JobStatus.FINISHED, **counts: int) -> Job:
    return job(table=TableName(table), status=status, counts=Counts(**counts), finished_at=NOW)


def test_a_line_for_each_table_that_something_was_done_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, ended(deleted=1200, held=3, skipped=2), ended("logs")) == [
        "events: deleted 1,200 rows, 3 held by a foreign key, a trigger or an error, 2 locked (finished)",
        "logs: deleted 0 rows (finished)",
    ]


def test_tables_with_nothing_to_delete_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [ended(name) for name in ("a", "b", "c")]
    assert report(capsys, *jobs) == ["3 tables had nothing to delete."]
    assert len(report(capsys, *jobs, verbose=True)) == 3


def test_partitions_of_one_table_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [replace(ended(deleted=2), table=TableName("events", None, name)) for name in ("p1", "p2")]
    assert report(capsys, *parts) == ["events: deleted 4 rows in 2 partitions (finished)"]
    assert report(capsys, *parts, verbose=True)[0] == "events[p1]: deleted 2 rows (finished)"


def test_dropped_partitions_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    dropped = Path(kind=PathKind.PARTITION)
    parts = [
        replace(ended(deleted=10), table=TableName("events", None, f"p{number}"), path=dropped) for number in range(7)
    ]
    assert report(capsys, *parts) == [
        "events: dropped 7 partitions (p0, p1, p2, p3, p4 and 2 more) with 70 rows (finished)"
    ]


def test_how_jobs_ended_is_said_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    failed = replace(ended(status=JobStatus.FAILED), reason="permission denied")
    assert report(capsys, failed) == ["events: deleted 0 rows (failed: permission denied)"]
    stopped = ended(status=JobStatus.RUNNING, deleted=1)
    assert report(capsys, stopped) == ["events: deleted 1 row (stopped; the next run goes on from here)"]
    late = ended(status=JobStatus.TIMED_OUT)
    parts = [replace(each, table=TableName("events", None, f"p{n}")) for n, each in enumerate((late, late, failed))]
    assert report(capsys, *parts) == [
        "events: deleted 0 rows in 3 partitions (2 timed out; 1 failed: permission denied)"
    ]


def test_rows_that_the_engine_deletes_by_itself_are_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    native = replace(ended(deleted=5), path=Path(kind=PathKind.NATIVE))
    assert report(capsys, native) == ["events: deleted about 5 rows (finished)"]


def test_skipped_tables_are_grouped_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    skips = [Skip(table=TableName(f"t{number}"), reason="paused") for number in range(7)]
    gone = Skip(table=TableName("gone"), reason="table gone does not exist", blocked=BlockCode.TABLE_GONE)
    assert report(capsys, skipped=[*skips, gone]) == [
        "7 tables skipped, paused: t0, t1, t2, t3, t4 and 2 more",
        "gone: skipped, table gone does not exist",
    ]


def test_skipped_partitions_of_one_table_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    skips = [Skip(table=TableName("events", None, name), reason="paused") for name in ("p1", "p2")]
    assert report(capsys, skipped=skips) == ["events: skipped, paused"]
    assert report(capsys, skipped=skips, verbose=True) == [
        "events[p1]: skipped, paused",
        "events[p2]: skipped, paused",
    ]


def test_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys) == ["Nothing is due."]
    assert report(capsys, has_policies=False) == ["No table has a TTL policy."]


def test_space_that_was_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    runreport.show(Output(), RunResult(jobs=(ended(deleted=1),), skipped=(), reclaimed_bytes=4096))
    assert capsys.readouterr().out.splitlines()[-1] == "4.0 KiB given back to the file system"
