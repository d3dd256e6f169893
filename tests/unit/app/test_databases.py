"""The databases of a file: where passwords come from, and where they may go."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url

from lapse.app.databases import _place
from lapse.app.policyfile import DatabaseEntry, read_databases
from lapse.errors import InvalidValue

URL = "postgresql://lapse:$PASSWORD@db1:5432/first"


def _entry(tmp_path: Path, more: str = "", *, url: str = URL) -> DatabaseEntry:
    path = tmp_path / "lapse.toml"
    path.write_text(f"[databases.shards]\nurl = '{url}'\n{more}", encoding="utf-8")
    (entry,) = read_databases(path, {"PASSWORD": "p@ss/w:rd", "HOST": "db9", "NAME": "orders"})
    return entry


def test_a_password_may_have_any_character(tmp_path: Path) -> None:
    url = make_url(_entry(tmp_path, url="postgresql://lapse:${PASSWORD}@$HOST:5433/$NAME").url)
    assert (url.password, url.host, url.port, url.database) == ("p@ss/w:rd", "db9", 5433, "orders")


def test_a_row_gives_a_name_and_perhaps_an_allowed_place(tmp_path: Path) -> None:
    entry = _entry(tmp_path, "query = 'SELECT 1'\nhosts = ['db2']\n")
    assert _place(entry, ("one",)) == ("one", None, None)
    assert _place(entry, ("one", "db1")) == ("one", "db1", None)
    assert _place(entry, ("one", "db2", 5433)) == ("one", "db2", 5433)


@pytest.mark.parametrize("row", [("one", "evil"), ("one", "db1", 6666), ("one", None, 6666), ("a/b",), ("",), (1,)])
def test_no_row_sends_the_password_elsewhere(tmp_path: Path, row: tuple[object, ...]) -> None:
    with pytest.raises(InvalidValue):
        _place(_entry(tmp_path, "query = 'SELECT 1'\nhosts = ['db2']\n"), row)
