"""The web server beside a worker, and the console alone, as processes of their own."""

from __future__ import annotations

import socket

import pytest

from lapse import console
from tests.serving import TOKEN, get, serving
from tests.unit.cli.conftest import Cli, Database


def test_worker_with_console(declared: Database) -> None:
    with serving("worker", declared.url, "--listen", "127.0.0.1:0", "--log-format", "json") as worker:
        address = worker.address()
        assert get(f"{address}healthz") == (200, "ok\n")
        assert get(f"{address}readyz") == (200, "ready\n")
        assert "lapse_ttl_database_up 1.0" in get(f"{address}metrics")[1]
        assert "events" in get(address)[1]
    assert declared.query("SELECT count(*) FROM lapse_worker") == [(0,)]


def test_console_alone_behind_a_token(declared: Database) -> None:
    with serving("console", declared.url, "--listen", "0.0.0.0:0", LAPSE_CONSOLE_TOKEN=TOKEN) as process:
        address = process.address().replace("0.0.0.0", "127.0.0.1")
        assert get(address)[0] == 401
        assert get(address, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(f"{address}healthz")[0] == 200


def test_off_loopback_without_a_token_it_does_not_start(cli: Cli, declared: Database) -> None:
    for command in ("worker", "console"):
        ran = cli(command, declared.url, "--listen", "0.0.0.0:0")
        assert ran.code == 2
        assert "a token is required" in ran.err
        assert "LAPSE_CONSOLE_TOKEN" in ran.err


def test_what_cannot_be_listened_on(cli: Cli, declared: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = cli("console", declared.url, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (ran.code, "cannot listen" in ran.err) == (2, True)
    assert cli("worker", declared.url, "--listen", "nonsense").code == 2


def test_without_the_extra_it_says_what_to_install(
    cli: Cli, declared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "find_spec", lambda name: None)
    ran = cli("console", declared.url)
    assert ran.code == 1
    assert "pip install '.[console]'" in ran.err
