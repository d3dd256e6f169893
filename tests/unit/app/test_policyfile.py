"""Reading `lapse.toml`: what it may say, and how it says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lapse.app.policyfile import json_schema, read_file
from lapse.errors import FileProblem
from lapse.model import interval
from lapse.model.parameters import PARAMETERS
from lapse.model.policy import Policy


def _read(folder: Path, text: str, environment: str | None = None, **variables: str) -> Any:
    path = folder / "lapse.toml"
    path.write_text(text, encoding="utf-8")
    return read_file(path, environment, variables)


FILE = """
[defaults]
ttl_job_cron = "@daily"
ttl_delete_rate_limit = 100

[environments.production]
url = "$DATABASE_URL"

[environments.staging]
url = "sqlite:///staging.db"
defaults = { ttl_delete_rate_limit = 7 }

[environments.staging.tables.events]
after = "2 days"
column = "ts"

[environments.staging.tables.extra]
ttl_expire_after = "1h"

[tables.events]
ttl_expiration_expression = "ts + INTERVAL '1 day'"
ttl_adaptive = false

[tables."odd name"]
exclude = "odd"
"""


def test_environments_override_tables_and_defaults(tmp_path: Path) -> None:
    production = _read(tmp_path, FILE, "production", DATABASE_URL="postgresql://u:p@h/d")
    assert production.url == "postgresql://u:p@h/d"
    assert [entry.name for entry in production.tables] == ["events", "odd name"]
    assert production.tables[0].policy == Policy(
        column="ts",
        interval=interval.parse("1 day"),
        job_cron="@daily",
        delete_rate_limit=100,
        adaptive=False,
    )
    assert production.tables[1].exclude == "odd"
    staging = _read(tmp_path, FILE, "staging")
    assert staging.url == "sqlite:///staging.db"
    events, _, extra = staging.tables
    assert (events.policy.interval, events.policy.delete_rate_limit) == (interval.parse("2 days"), 7)
    assert events.policy.adaptive is False
    assert extra.policy.expire_after == interval.parse("1 hour")
    assert _read(tmp_path, FILE).url is None


PROBLEMS = {
    "a = 1": (1, 1, "a is not known here"),
    "[tables.t]\nttl_expire_after = 30": (2, 1, "has no unit"),
    "[tables.t]\n\n  ttl_nope = 1": (3, 3, "ttl_nope is not known here"),
    "[tables.t]\nttl_expire_after = '1 day'\nttl_job_cron = 'often'": (3, 1, "must be a cron expression"),
    "[tables.t]\nttl_adaptive = true": (1, 1, "has no TTL"),
    "[tables.t]\ncolumn = 'ts'": (2, 1, "column needs after"),
    "[tables.t]\nafter = '1 day'": (2, 1, "after needs column"),
    "[tables.t]\ncolumn = 'ts'\nafter = '30'": (3, 1, "has no unit"),
    "[tables.t]\nexclude = ' '": (2, 1, "must say why"),
    "[tables.t]\nexclude = 'x'\nttl_pause = true": (2, 1, "is excluded"),
    "[tables.t]\nttl_expire_after = []": (2, 1, "must be a string"),
    "[tables.t]\nttl_expiration_expression = 'ts +'": (2, 1, "is not a valid expression"),
    "tables = 3": (1, 1, "tables must be a table"),
    "[defaults]\nttl_expire_after = '1 day'": (2, 1, "is not known here"),
    "[defaults]\nttl_delete_batch_size = 0": (2, 1, "must be a whole number"),
    "[environments.a]\nurl = 'postgresql://u:secret@h/d'": (2, 1, "a password does not belong"),
    "[environments.a]\nurl = '$NOT_SET'": (2, 1, "NOT_SET is not set"),
    "[environments.a]\nurl = 3": (2, 1, "url must be a string"),
    "[environments.a]\nport = 3": (2, 1, "port is not known"),
    "[tables.t\n": (1, 10, "Expected ']'"),
    "[tables.t]\nx = \n": (2, 5, "Invalid value"),
    "x = '''\n[tables.t]\n'''\n": (1, 1, "x is not known"),
    '[tables."a b".c]\n': (1, 1, "c is not known"),
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_problems_have_a_place(tmp_path: Path, text: str) -> None:
    line, column, words = PROBLEMS[text]
    with pytest.raises(FileProblem) as caught:
        _read(tmp_path, text)
    assert words in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)
    assert caught.value.message.startswith(f"{tmp_path / 'lapse.toml'}:{line}:{column}: ")
    assert "secret" not in str(caught.value)


def test_an_environment_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="no environment 'nope'"):
        _read(tmp_path, FILE, "nope")


def test_the_schema_knows_every_parameter() -> None:
    table = json_schema()["$defs"]["table"]["properties"]
    assert {parameter.name for parameter in PARAMETERS.values() if parameter.field} <= table.keys()
    assert table["ttl_adaptive"]["enum"] == [True, False, "on", "off"]
    assert table["ttl_delete_batch_size"] | {"description": ""} == {"type": "integer", "minimum": 1, "description": ""}
    assert "ttl_expire_after" not in json_schema()["$defs"]["defaults"]["properties"]
