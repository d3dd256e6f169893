"""What an ended job came to, as it is stored and read again."""

from __future__ import annotations

from lapse.model.job import JobSummary


def test_a_summary_is_read_as_it_was_written() -> None:
    summary = JobSummary(total_rows=7, success_rows=5, held_rows=2, waits={"gate": 1.5}, scan_task_err="refused")
    assert JobSummary.from_json(summary.to_json()) == summary


def test_summaries_of_other_versions_are_read() -> None:
    assert JobSummary.from_json("{}") == JobSummary()
    assert JobSummary.from_json('{"success_rows": 3, "of_a_later_version": 1}') == JobSummary(success_rows=3)
    assert JobSummary.from_json('{"error": "no right"}').error == "no right"
