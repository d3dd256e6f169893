"""Who does something: the process itself, or a user of the console whom it acts for."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lapse.model import actor
from lapse.model.actor import acting, acting_user, current_actor


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    actor._process.cache_clear()
    yield
    actor._process.cache_clear()


def test_a_process_acts_for_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr("sys.argv", ["/usr/bin/lapse", "worker"])
    found = current_actor()
    assert (found.user, found.host, found.program) == ("ada", socket.gethostname(), "lapse")
    assert acting_user() is None


def test_a_program_that_was_begun_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(Path("/opt/app/lapse/__main__.py"))])
    assert current_actor().program == "lapse"


def test_a_user_with_a_number_and_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert current_actor().user == str(os.getuid())


def test_what_is_done_inside_is_done_for_another_user() -> None:
    before = current_actor()
    with acting(user="grace", program="console"):
        assert (current_actor().user, current_actor().program) == ("grace", "console")
        assert current_actor().host == before.host
        assert acting_user() == "grace"
        with acting(user="ada", program="console"):
            assert acting_user() == "ada"
        assert acting_user() == "grace"
    assert current_actor() == before


def test_an_error_inside_ends_it_as_well() -> None:
    with pytest.raises(RuntimeError), acting(user="grace", program="console"):
        raise RuntimeError
    assert acting_user() is None


def test_other_threads_act_for_themselves() -> None:
    with ThreadPoolExecutor(1) as pool, acting(user="grace", program="console"):
        assert pool.submit(acting_user).result() is None


def test_a_name_that_no_database_could_store() -> None:
    with acting(user="gr\0ace \udcff", program="console"):
        assert acting_user() == "grace \\udcff"
