"""The web server beside a worker, and the console alone, as processes of their own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lapse import console
from tests.unit.cli.conftest import Cli, Database

TOKEN = "a-token-for-tests-0123456789"


@contextmanager
def _serving(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the address that it says it serves."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lapse", *arguments], stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )
    assert process.stderr is not None
    try:
        seen = ""
        for line in process.stderr:
            seen += line
            found = re.search(r"console and metrics on (http://\S+?)\"?[,}]?$", line.strip())
            if found:
                yield process, found[1].rstrip('"}')
                break
        else:
            raise AssertionError(seen)
    finally:
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        process.stderr.close()
        code = process.wait(30)
    assert code == 0


def _get(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_worker_with_console(declared: Database) -> None:
    with _serving("worker", declared.url, "--listen", "127.0.0.1:0", "--log-format", "json") as (_, url):
        assert _get(url + "healthz") == (200, "ok\n")
        assert _get(url + "readyz") == (200, "ready\n")
        assert "lapse_ttl_database_up 1.0" in _get(url + "metrics")[1]
        assert "events" in _get(url)[1]
    assert declared.query("SELECT count(*) FROM lapse_worker") == [(0,)]


def test_console_alone_behind_a_token(declared: Database) -> None:
    arguments = ("console", declared.url, "--listen", "0.0.0.0:0")
    with _serving(*arguments, LAPSE_CONSOLE_TOKEN=TOKEN) as (_, url):
        local = url.replace("0.0.0.0", "127.0.0.1")
        assert _get(local)[0] == 401
        assert _get(local, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert _get(local + "healthz")[0] == 200


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
    assert "pip install 'lapse-ttl[console]'" in ran.err
