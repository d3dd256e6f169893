"""`lapse certificate`: made once, checked with nothing but the file and the key, and any changed byte is refused."""

from __future__ import annotations

import json
import stat
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.app import signing
from lapse.cli import main


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(signing.KEY_VARIABLE, raising=False)
    url = "sqlite:///app.db"
    declared = 'CREATE TABLE "<i>events" (id INTEGER PRIMARY KEY, ts TEXT) TTL = ts + INTERVAL 1 DAY'
    assert main(["sql", url, "-c", declared]) == 0
    return url


def _times(url: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """All of the time that is on record."""
    capsys.readouterr()
    main(["ledger", url, "--json"])
    recorded = [entry["at"] for entry in json.loads(capsys.readouterr().out)]
    main(["settings", url, "lapse_mode", "fast"])
    main(["ledger", url, "--json"])
    return ["--from", min(recorded), "--to", json.loads(capsys.readouterr().out.partition("\n")[2])[0]["at"]]


def test_made_read_and_checked(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = _times(url, capsys)
    assert main(["certificate", url, *times, "-o", "x.html"]) == 0
    key = tmp_path / "config" / "lapse" / "certificate.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and str(key) in capsys.readouterr().err
    page = (tmp_path / "x.html").read_text()
    assert "&lt;i&gt;events" in page and "<i>events" not in page and "x.json" in page
    assert main(["certificate", "--verify", "x.json", "--public-key", f"{key}.pub"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["certificate", "--verify", "x.json"]) == 0
    assert "--public-key" in capsys.readouterr().err
    # The same key signs the next one, and nothing is overwritten.
    assert main(["certificate", url, *times, "-o", "x.json"]) != 0
    assert main(["certificate", url, *times]) == 0
    assert (
        json.loads(capsys.readouterr().out)["public_key"] == json.loads((tmp_path / "x.json").read_text())["public_key"]
    )


@pytest.mark.parametrize("arguments", [
    ["--from", "2020-01-01"], ["--from", "2020-01-01", "--to", "soon"],
    ["--from", "2020-01-01T00:00:00", "--to", "2020-01-02"],
    ["--from", "2020-01-01", "--to", "2020-01-02"], ["--from", "2020-01-02", "--to", "2020-01-01"],
    ["--from", "2020-01-01", "--to", "2020-01-02", "-o", "x.pdf"], ["--verify", "x.json"], ["--public-key", "x"],
    ["--verify", "app.db", "--from", "2020-01-01"],
])  # fmt: skip
def test_what_is_refused(url: str, arguments: list[str], tmp_path: Path) -> None:
    assert main(["certificate", url, *arguments]) in (1, 2)
    assert not list(tmp_path.glob("x.*")) and not (tmp_path / "config").exists()


def test_a_key_that_others_can_read_signs_nothing(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = _times(url, capsys)
    signing.make_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    assert main(["certificate", url, *times, "--key-file", "key"]) != 0
    assert "chmod 600" in capsys.readouterr().err
    (tmp_path / "bad").write_text("no key")
    (tmp_path / "bad").chmod(0o600)
    assert main(["certificate", url, *times, "--key-file", "bad"]) != 0


@cache
def _signed() -> tuple[str, Path]:
    folder = Path(tempfile.mkdtemp())
    signing.make_key(folder / "key")
    statement = {"database": "app", "tables": [{"table": "events", "deleted": 1200, "share": 0.5}], "kept": True}
    return signing.signed(statement, signing.load_key(folder / "key")), folder / "key.pub"


@given(st.data(), st.booleans())
def test_any_changed_byte_is_refused(data: st.DataObject, knows_key: bool) -> None:
    text, public = _signed()
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from('0123456789abcdefABCDEF \n\t{}[]",:.eE-+\\/xé').filter(lambda c: c != text[at]))
    kind = data.draw(st.sampled_from(["changed", "removed", "added"]))
    changed = {
        "changed": text[:at] + other + text[at + 1 :], "removed": text[:at] + text[at + 1 :],
        "added": text[:at] + other + text[at:],
    }[kind]  # fmt: skip
    key = signing.load_public_key(public) if knows_key else None
    assert signing.opened(text, key)["kept"] is True
    if changed != text:
        with pytest.raises(signing.NotGenuine):
            signing.opened(changed, key)


def test_another_key_is_another_signer(tmp_path: Path) -> None:
    signing.make_key(tmp_path / "other")
    with pytest.raises(signing.NotGenuine, match="another key"):
        signing.opened(_signed()[0], signing.load_public_key(tmp_path / "other.pub"))
    forged = signing.signed({"kept": True}, signing.load_key(tmp_path / "other"))
    with pytest.raises(signing.NotGenuine):
        signing.opened(forged, signing.load_public_key(_signed()[1]))
