"""`lapse bench` needs no superuser and leaves a database as it found it."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from lapse.cli import main
from tests.conftest import Servers


def test_the_owner_of_a_fresh_database(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    backend = servers.get("postgres15-role")
    url = backend.create()
    try:
        code = main(["bench", url, "--rows", "1000", "--rounds", "1", "--json"])
        assert code == 0, capsys.readouterr().err
        with closing(psycopg.connect(url)) as connection:
            found = connection.execute(
                "SELECT relname FROM pg_class WHERE relnamespace::regnamespace::text !~ '^(pg_|information_schema)'"
                " UNION ALL SELECT nspname FROM pg_namespace WHERE nspname ~ 'lapse'"
                " UNION ALL SELECT proname FROM pg_proc WHERE proname ~ 'lapse'"
            ).fetchall()
        assert found == []
    finally:
        backend.drop(url)


def test_who_may_not_create_a_table(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    backend = servers.get("postgres15-role")
    url = backend.create()
    try:
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute("DROP SCHEMA public")
        assert main(["bench", url, "--rows", "1000", "--rounds", "1"]) == 1
        assert "defect" not in capsys.readouterr().err
    finally:
        backend.drop(url)
