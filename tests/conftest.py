"""Servers for the whole test session, started on first use."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.backends import BACKENDS, CONFORMING, Backend

# How long an example takes says more about the machine than about the code.
settings.register_profile("lapse", deadline=None)
settings.load_profile("lapse")


def pytest_collection_finish() -> None:
    """Modules and tests live as long as the process: no collection of garbage has to look at them again."""
    gc.collect()
    gc.freeze()


class Servers:
    """Starts each backend once per process."""

    def __init__(self) -> None:
        self._running: dict[str, Backend] = {}

    def get(self, name: str) -> Backend:
        if name not in self._running:
            backend = (BACKENDS | CONFORMING).get(name)
            if backend is None:
                pytest.skip(f"{name}: LAPSE_TEST_ONLY asks for another")
            reason = backend.why_not()
            if reason is not None:
                if os.environ.get("CI"):
                    pytest.fail(f"{name}: {reason}")
                pytest.skip(f"{name}: {reason}")
            self._running[name] = backend()
        return self._running[name]

    def close(self) -> None:
        for backend in self._running.values():
            backend.close()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    started = Servers()
    yield started
    started.close()
