"""What an entry of the ledger says, in a line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lapse.app.ledger import parse_head, summary, who
from lapse.errors import InvalidValue
from lapse.model.ledger import EntryKind, Head, LedgerEntry
from lapse.model.table import TableName

HASH = "0123456789abcdef" * 4


def entry(
    kind: str, after: dict[str, Any] | None = None, before: dict[str, Any] | None = None, **fields: Any
) -> LedgerEntry:
    values: dict[str, Any] = {
        "id": 1,
        "at": "2026-03-01T12:00:00Z",
        "kind": kind,
        "table": TableName("events"),
        "role": None,
        "user": "ada",
        "host": "db1",
        "program": "lapse",
        "before": None if before is None else json.dumps(before),
        "after": None if after is None else json.dumps(after),
    }
    return LedgerEntry(**values | fields)


RAN = {
    "job": 7,
    "status": "finished",
    "deleted": 10,
    "policy_version": 2,
    "cutoff": "2026-03-01T11:00:00Z",
}


@pytest.mark.parametrize(
    ("kind", "before", "after", "words"),
    [
        (EntryKind.DECLARED, None, {"version": 1, "policy": {"b": 2, "a": 1}}, "version 1, a: 1, b: 2"),
        (EntryKind.FOUND, None, {"hold": 3, "where": "a = 1"}, "hold 3 of a = 1"),
        (EntryKind.FOUND, None, {"setting": "lapse_grace", "value": "1 h"}, "lapse_grace = 1 h"),
        (
            EntryKind.CHANGED,
            {"policy": {"interval": "1 day", "zone": "UTC"}},
            {"version": 2, "policy": {"interval": "2 days", "zone": "UTC", "pause": True}},
            "version 2, interval: 1 day → 2 days, pause: - → True",
        ),
        (EntryKind.PAUSED, None, {"job": 4}, "job 4"),
        (EntryKind.RESUMED, {"policy": {}}, {"version": 3, "policy": {}}, "version 3"),
        (EntryKind.HELD, None, {"hold": 1, "where": None, "until": "2030-01-01", "reason": "case 9"},
         "hold 1 of all rows, until 2030-01-01: case 9"),
        (EntryKind.RELEASED, {"hold": 1, "where": "id = 1", "policy_version": 5}, None,
         "hold 1 of id = 1 (policy version 5)"),
        (EntryKind.RUN, None, RAN, "job 7 finished: 10 deleted, policy version 2, cutoff 2026-03-01T11:00:00Z"),
        (
            EntryKind.RUN,
            None,
            RAN | {"partition": "p1", "held": 2, "skipped": 0, "archive": "table:old", "keys": {"rows": 10}},
            "job 7 of partition p1 finished: 10 deleted, 2 held, archived in table:old, keys recorded: 10,"
            " policy version 2, cutoff 2026-03-01T11:00:00Z",
        ),
        (EntryKind.ARCHIVED, None, {"rows": 5, "job": 7, "archive": "file:///a", "file": "x.parquet"},
         "5 rows of job 7 in file:///a/x.parquet"),
        (EntryKind.RESTORED, None, {"archive": "table:old", "jobs": {"7": 2, "8": 1}},
         "rows from table:old: 2 of job 7, 1 of job 8"),
        (EntryKind.SETTING, {"value": None}, {"setting": "lapse_grace", "value": "1 h"},
         "lapse_grace: the default → 1 h"),
        (EntryKind.GUARDED, None, {"reason": "too many"}, "too many"),
        (EntryKind.CONFIRMED, None, {"by": "guard"}, "guard"),
        (EntryKind.REMOVED, None, None, ""),
    ],
)  # fmt: skip
def test_every_kind_has_words(
    kind: EntryKind, before: dict[str, Any] | None, after: dict[str, Any] | None, words: str
) -> None:
    assert summary(entry(kind, after, before)) == words


def test_a_kind_of_a_later_version_is_shown_as_it_is() -> None:
    assert summary(entry("rekeyed", {"b": 2, "a": 1})) == "a: 1, b: 2"


def test_an_entry_that_lacks_what_its_kind_says_is_shown_as_it_is() -> None:
    assert summary(entry(EntryKind.RUN, {"job": 7})) == "job: 7"


def test_who_did_it() -> None:
    assert who(entry(EntryKind.RUN)) == "ada at db1 (lapse)"
    assert who(entry(EntryKind.RUN, role="ttl_worker")) == "ttl_worker, ada at db1 (lapse)"


def test_a_head_as_it_is_printed() -> None:
    assert parse_head(f"12:{HASH}") == Head(sequence=12, hash=HASH)


@pytest.mark.parametrize(
    "text", ["", "12", f":{HASH}", f"x:{HASH}", f"12:{HASH[1:]}", f"12:{HASH[:-1]}G", f"-1:{HASH}"]
)
def test_a_head_that_is_none(text: str) -> None:
    with pytest.raises(InvalidValue, match="--head"):
        parse_head(text)
