"""The page of a certificate: every figure is there, nothing of the database is taken for markup."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from lapse.app.certificate_page import page


def table(**fields: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "schema": "public",
        "table": "events",
        "deleted": 1234,
        "archived": 34,
        "restored": 5,
        "jobs": {"finished": 3, "failed": 1},
        "longest_without_job_seconds": 5400,
        "policies": [],
        "holds": [],
        "now": {"rows": 9000, "expired": 20, "overdue": 0, "cannot_be_deleted": 0, "delete_within": "1 day"},
    }
    return values | fields


def statement(*tables: dict[str, Any], **fields: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "database": "app",
        "from": "2026-01-01T00:00:00+00:00",
        "to": "2026-02-01T00:00:00+00:00",
        "made_at": "2026-02-02T10:11:12+00:00",
        "made_by": {"role": "dba", "user": "ada", "host": "db1"},
        "lapse": "1.0",
        "ledger": {"entries": 77, "head": "12:abc"},
        "tables": list(tables),
    }
    return values | fields


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html.split("</style>")[1])).split())


def test_what_was_done_is_there() -> None:
    found = text_of(page(statement(table()), "c.json", "KEY"))
    for words in (
        "Database app , from 2026-01-01 00:00 UTC to 2026-02-01 00:00 UTC",
        "Table public.events",
        "1,234, of which 34 are kept in an archive",
        "3 finished, 1 failed",
        "1.5 hours",
        "20 of 9,000 rows have expired, 0 of them longer ago than 1 day; 0 cannot be deleted",
        "77 entries of the ledger were verified",
        "12:abc",
        "by dba, ada with Lapse 1.0",
        "lapse certificate --verify c.json --public-key FILE",
        "KEY",
    ):
        assert words in found


@pytest.mark.parametrize(
    ("overdue", "stuck", "words"),
    [
        (0, 0, "No expired row that should be gone, and could be deleted, was left when this was made."),
        (0, 3, "3 that should be gone cannot be deleted, as other rows refer to them."),
        (1200, 0, "1,200 expired rows that should be gone are still there."),
    ],
)
def test_the_verdict(overdue: int, stuck: int, words: str) -> None:
    now = {"rows": 1, "expired": 1, "overdue": overdue, "cannot_be_deleted": stuck, "delete_within": "1 day"}
    found = text_of(page(statement(table(now=now), table(now=None)), "c.json", "KEY"))
    assert words in found
    assert ("No expired row" in found) == (overdue == 0)


def test_a_table_without_a_policy_now() -> None:
    assert "the table has no policy now" in text_of(page(statement(table(now=None)), "c.json", "KEY"))


def test_promises_and_holds() -> None:
    promised = {
        "version": 2,
        "policy": {"interval": "30 days", "column": "at"},
        "from": "2026-01-01T00:00:00+00:00",
        "to": None,
        "declared_by": {"role": None, "user": "ada"},
    }
    held = {
        "hold": 9,
        "where": None,
        "placed_at": "2026-01-05T08:00:00+00:00",
        "released_at": None,
        "until": "2026-03-01T00:00:00+00:00",
        "reason": None,
    }
    found = text_of(page(statement(table(policies=[promised], holds=[held])), "c.json", "KEY"))
    assert "2 column: at, interval: 30 days 2026-01-01 00:00 – now ada" in found
    assert "9 all rows 2026-01-05 08:00 – 2026-03-01 00:00" in found


def test_names_are_no_markup() -> None:
    evil = "<script>alert(1)</script>"
    held = {
        "hold": 1,
        "where": evil,
        "placed_at": "2026-01-05T08:00:00+00:00",
        "released_at": None,
        "until": None,
        "reason": evil,
    }
    made = {"role": evil, "user": evil}
    whole = statement(table(table=evil, schema=None, holds=[held]), database=evil, made_by=made)
    html = page(whole, evil, evil)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 8
