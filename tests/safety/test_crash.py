"""The simulated crash hides nothing but itself."""

from __future__ import annotations

import threading

import pytest

from tests.safety.crash import Died, dying


def _end_a_thread(error: BaseException) -> None:
    def fail() -> None:
        raise error

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


def test_a_thread_may_die_of_the_crash() -> None:
    with dying():
        _end_a_thread(Died())
        raise Died


def test_a_thread_may_end_of_nothing_else() -> None:
    with pytest.raises(ValueError, match="a bug"), dying():
        _end_a_thread(ValueError("a bug"))
        raise Died
