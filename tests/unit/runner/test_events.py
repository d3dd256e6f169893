"""Listeners: one that hears nothing, and one that passes everything on."""

from __future__ import annotations

import inspect
from typing import Any

from lapse.runner.events import Listener, MultiListener, NullListener

METHODS = sorted(name for name, _ in inspect.getmembers(Listener, inspect.isfunction) if not name.startswith("_"))


class Recorder:
    """Writes down every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, arguments))


def arguments_of(method: str) -> list[Any]:
    return [object() for name in inspect.signature(getattr(Listener, method)).parameters if name != "self"]


def test_both_listeners_know_every_event() -> None:
    for kind in (NullListener, MultiListener):
        known = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
        assert known == set(METHODS)


def test_every_event_reaches_every_listener_in_order() -> None:
    first, second = Recorder(), Recorder()
    several: Any = MultiListener([first, second])
    for method in METHODS:
        passed = arguments_of(method)
        getattr(several, method)(*passed)
        assert first.calls[-1] == (method, tuple(passed))
        assert second.calls[-1] == (method, tuple(passed))
    assert len(first.calls) == len(METHODS)


def test_hearing_nothing_fails_nowhere() -> None:
    silent: Any = NullListener()
    for method in METHODS:
        assert getattr(silent, method)(*arguments_of(method)) is None
