"""Runs that the work of others has disturbed are done again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench import quiet


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the work of others is going to take, look by look."""
    coming: list[float] = []
    monkeypatch.setattr(quiet, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(quiet._Watch, "share", lambda watch: coming.pop(0))
    return coming


def test_a_quiet_machine_measures_once(shares: list[float]) -> None:
    shares += [0.0, 0.01]
    assert quiet.undisturbed(iter("ab").__next__, print) == "a"


def test_nothing_begins_while_others_work(shares: list[float]) -> None:
    shares += [0.9, 0.5, 0.0, 0.0]
    said: list[str] = []
    assert quiet.undisturbed(iter("ab").__next__, said.append) == "a"
    assert (shares, said) == ([], ["waiting for other work to end"])


def test_a_disturbed_run_is_done_again(shares: list[float]) -> None:
    shares += [0.0, 0.3, 0.0, 0.02]
    assert quiet.undisturbed(iter("ab").__next__, print) == "b"


def test_on_a_machine_that_is_never_quiet_the_least_disturbed_counts(shares: list[float]) -> None:
    for share in (0.4, 0.2, 0.3, 0.6, 0.5):
        shares += [0.0, share]
    assert quiet.undisturbed(iter("abcde").__next__, print) == "b"


def test_what_this_process_has_started_is_no_others() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        others = quiet._others()
        assert child.pid not in others
        assert os.getpid() not in others
        child.communicate(b"\n")
    assert 1 in others
