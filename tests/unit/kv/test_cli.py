"""The commands of `lapse kv`, by their output and exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from lapse.cli import main

pytest.importorskip("slatedb", reason="needs the extra kv")
pytest.importorskip("rocksdict", reason="needs the extra kv")


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def lapse_kv(*args: str, stdin: bytes | None = None) -> Result:
    with CliRunner().isolation(input=stdin) as (out, err, _):
        code = main(["kv", *args])
        sys.stderr.flush()
        return Result(code, out.getvalue().decode(), err.getvalue().decode())


@pytest.fixture(params=["rocksdb", "slatedb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"{request.param}:{tmp_path / 'store'}"
    assert lapse_kv("put", url, "first", "value", "--ttl", "1 hour", "--create").exit_code == 0
    return url


def test_put_and_get(url: str) -> None:
    assert lapse_kv("put", url, "k", "hello", "--no-expiry").stdout == "never expires\n"
    assert lapse_kv("get", url, "k").stdout == "hello\n"
    shown = json.loads(lapse_kv("get", url, "first", "--json").stdout)
    assert (shown["key"], shown["value"], shown["expired"]) == ("first", "value", False)
    assert 3500 < shown["remaining"] <= 3600
    assert "expires" in lapse_kv("get", url, "first", "--meta").stderr


def test_a_row_that_lives_shorter_than_its_command(url: str) -> None:
    assert lapse_kv("put", url, "k", "v", "--ttl", "1 ms").stdout.startswith("expire")
    assert "unchecked" not in lapse_kv("purge", url, "--within", "10 seconds").stdout


def test_put_from_standard_input_and_binary(url: str) -> None:
    assert lapse_kv("put", url, "k", "-", stdin=b"\xff\x00").exit_code == 0
    assert lapse_kv("get", url, "6b", "--as", "hex").stdout == "ff00\n"
    assert json.loads(lapse_kv("get", url, "k", "--json").stdout)["value_as"] == "base64"
    assert lapse_kv("get", url, "aw==", "--as", "base64").stdout == "/wA=\n"


def test_scan(url: str) -> None:
    lapse_kv("put", url, "second", "value")
    lines = lapse_kv("scan", url, "--json").stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["first", "second"]
    assert "second" not in lapse_kv("scan", url, "--prefix", "f").stdout
    assert "first" in lapse_kv("scan", url, "--limit", "1").stdout
    assert lapse_kv("scan", url, "--start", "g", "--end", "t", "--json").stdout.count("\n") == 1


def test_stats(url: str) -> None:
    shown = json.loads(lapse_kv("stats", url, "--json").stdout)
    assert (shown["default_ttl"], shown["format_version"]) == (None, 3)
    assert "clock mark" in lapse_kv("stats", url).stdout


def test_purge(url: str) -> None:
    shown = json.loads(lapse_kv("purge", url, "--within", "10 seconds", "--json").stdout)
    assert (shown["purged"], shown["complete"], shown["verification"]["payloads_left"]) == (0, True, 0)
    assert "purged" in lapse_kv("purge", url).stdout


def test_ttl(url: str) -> None:
    assert lapse_kv("ttl", url).stdout == "none\n"
    assert lapse_kv("ttl", url, "30 days").stdout == "30 days\n"
    assert json.loads(lapse_kv("ttl", url, "--json").stdout) == {"default_ttl": "30 days"}
    assert lapse_kv("ttl", url, "none").stdout == "none\n"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["get", "{}", "missing"], 1, "no row"),
        (["put", "{}", "k", "v", "--ttl", "0 days"], 2, "longer than zero"),
        (["put", "{}", "k", "v", "--ttl", "5"], 2, "no unit"),
        (["put", "{}", "k", "v", "--expires-at", "2000-01-01T00:00:00Z"], 2, "later than now"),
        (["put", "{}", "k", "v", "--expires-at", "tomorrow"], 2, "ISO 8601"),
        (["put", "{}", "k", "v", "--expires-at", "2030-01-01T00:00:00"], 2, "has no zone"),
        (["put", "{}", "k", "v", "--ttl", "1 day", "--no-expiry"], 2, "cannot be combined"),
        (["put", "{}", "", "v"], 2, "must not be empty"),
        (["put", "{}", "zz", "v", "--as", "hex"], 2, "must be hex"),
        (["ttl", "{}", "soon"], 2, "duration"),
        (["purge", "{}", "--rows-per-second", "0"], 2, "more than 0"),
        (["get", "{}-elsewhere", "k"], 1, "no store"),
        (["put", "{}-elsewhere", "k", "v"], 1, "`lapse kv put --create` creates one"),
        (["put", "{}/lapse-file", "k", "v", "--create"], 1, "is a file, not a"),
        (["put", "{}/lapse-file/below", "k", "v", "--create"], 1, "lapse-file"),
        (["stats", "redis:/x"], 2, "not a key-value store"),
    ],
)
def test_errors_are_one_line_and_a_code(url: str, args: list[str], code: int, message: str) -> None:
    (Path(url.partition(":")[2]) / "lapse-file").touch()
    result = lapse_kv(*(arg.format(url) for arg in args))
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_value_cannot_write_to_the_terminal(url: str) -> None:
    lapse_kv("put", url, "k", "\x1b]0;owned\x07")
    shown = lapse_kv("scan", url).stdout
    assert "\\x1b]0;owned\\x07" in shown and "\x1b" not in shown


def test_preview_pause_and_history(url: str) -> None:
    shown = json.loads(lapse_kv("preview", url, "--json").stdout)
    assert (shown["rows"], shown["expired"], shown["paused"]) == (1, 0, None)
    lapse_kv("pause", url, "--reason", "legal hold 17")
    assert json.loads(lapse_kv("preview", url, "--json").stdout)["paused"] == "legal hold 17"
    assert "legal hold 17" in _purge(url).stdout
    lapse_kv("resume", url)
    lapse_kv("purge", url)
    (record,) = json.loads(lapse_kv("history", url, "--json").stdout)
    assert (record["purged"], record["complete"]) == (0, True)
    assert "yes" in lapse_kv("history", url).stdout


def _purge(url: str) -> Result:
    result = lapse_kv("purge", url)
    assert result.exit_code == 3
    return result


def test_clock(url: str) -> None:
    before = lapse_kv("clock", url).stdout
    assert json.loads(lapse_kv("clock", url, "--trust", "--json").stdout)["clock_mark"] >= before.strip()


def test_status_beside_tables(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAPSE_URL", raising=False)
    missing = "rocksdb:/nonexistent/store"
    assert main(["status", "--kv", url, "--kv", missing, "--json"]) == 0
    there, away = json.loads(capsys.readouterr().out)
    assert (there["store"], there["state"], away["state"]) == (url, "never purged", "unreachable")
    assert main(["status", "--kv", url]) == 0
    assert "never purged" in capsys.readouterr().out
