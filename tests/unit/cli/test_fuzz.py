"""Whatever is typed, piped in or written into a file: an answer or an error, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lapse.cli import main
from tests.unit.cli.conftest import Database

COMMANDS = (
    "sql preview run status jobs history doctor init plan apply lint pause resume cancel accept settings convert bench"
    " kv"
).split()
OPTIONS = (
    "--json --csv --table --limit --file --env --prune --job --clock --column --after --ttl --expression --exact --yes"
    " --max-runtime --to --from -c -f -t -n -v --reset --kv --time-zone --repair --force --help --version"
).split()
WORDS = st.one_of(
    st.sampled_from([*OPTIONS, "events", "-", "--", "", "0", "-1", "99999999999999999999", "NaN", "1e400", "30 days"]),
    st.text(max_size=12),
    st.sampled_from(["\udcff", "\x00", "a\x00b", "\u202e", "'; DROP TABLE events; --", "☃", "SELECT 1", "URL", "DIR"]),
)
LOOKS = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def here(declared: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing that is written by chance lands elsewhere, and nothing that is read by chance waits for a person."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield tmp_path / "work"


def _assert_answered(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    said = capsys.readouterr()
    assert code in (0, 1, 2, 3)
    assert "Traceback" not in said.err
    assert "this is a defect of Lapse" not in said.err, said.err
    assert code in (0, 3) or said.err.startswith(("error: ", "notice: ")) or said.out, said.err


@LOOKS
@given(command=st.sampled_from(COMMANDS), words=st.lists(WORDS, max_size=5), with_url=st.booleans())
def test_arguments(
    declared: Database, here: Path, capsys: pytest.CaptureFixture[str], command: str, words: list[str], with_url: bool
) -> None:
    if command == "bench":
        words = [*words, "--rows", "0"]  # refused: a real one takes seconds
    places = {"URL": declared.url, "DIR": str(here)}
    arguments = [command, *([declared.url] if with_url else []), *(places.get(word, word) for word in words)]
    _assert_answered(main(arguments), capsys)


@LOOKS
@given(data=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))))
def test_files(declared: Database, here: Path, capsys: pytest.CaptureFixture[str], data: bytes) -> None:
    path = here / "any"
    path.write_bytes(data)
    for arguments in (
        ["plan", declared.url, "-f", str(path)],
        ["lint", "-f", str(path)],
        ["convert", str(path), "--to", "tidb"],
        ["sql", "sqlite://", "-f", str(path)],
    ):
        _assert_answered(main(arguments), capsys)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "cp037"])
@pytest.mark.parametrize("command", ["plan", "sql", "convert", "lint"])
def test_another_encoding_is_told_with_its_place(
    declared: Database, here: Path, capsys: pytest.CaptureFixture[str], encoding: str, command: str
) -> None:
    path = here / "saved"
    path.write_bytes('[tables.events]\nexclude = "weil sie \xfcberleben"\n'.encode(encoding))
    arguments = {"convert": [str(path), "--to", "tidb"]}.get(command, [declared.url, "-f", str(path)])
    assert main([command, *arguments]) == 2
    said = capsys.readouterr().err
    assert "is not UTF-8" in said
    assert f"{path}:{2 if encoding == 'latin-1' else 1}:" in said


def test_a_byte_order_mark_is_no_mistake(declared: Database, here: Path) -> None:
    (here / "lapse.toml").write_text('[tables.events]\nexclude = "kept"\n', encoding="utf-8-sig")
    assert main(["lint", declared.url]) == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_output_that_lacks_characters(declared: Database, encoding: str) -> None:
    """JSON escapes them, a table shows their number, CSV has no way to write them and says so."""
    environment = os.environ | {"PYTHONIOENCODING": encoding}

    def sql(form: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "lapse", "sql", declared.url, form, "-c", "SELECT 'snow ☃' AS x"]
        return subprocess.run([word for word in command if word], env=environment, capture_output=True, check=False)

    assert b"Traceback" not in sql("--json").stderr + sql("--csv").stderr + sql("").stderr
    assert (sql("--json").returncode, sql("").returncode) == (0, 0)
    if encoding == "utf-8":
        assert sql("--csv").stdout.decode() == "x\nsnow ☃\n"
    else:
        assert b"snow \\u2603" in sql("--json").stdout
        assert sql("--csv").returncode == 1
        assert b"PYTHONIOENCODING" in sql("--csv").stderr


@pytest.mark.parametrize("after", [0.05, 0.2, 0.5, 0.9])
def test_ctrl_c_at_any_moment(declared: Database, after: float) -> None:
    process = subprocess.Popen([sys.executable, "-m", "lapse", "status", declared.url], stderr=subprocess.PIPE)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    # Before Python itself is up, its own words for it cannot be helped.
    assert process.returncode in (0, 130, -signal.SIGINT, 1)
    assert b"lapse/cli" not in said
    assert b"lapse/app" not in said
