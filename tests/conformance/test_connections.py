"""Connections that died while nobody used them are replaced before anybody notices."""

from __future__ import annotations

import pytest

import lapse
from lapse.engines import pooling
from tests.conformance.harness import Harness


def test_a_connection_that_died_a_moment_ago_is_replaced(h: Harness) -> None:
    """The end of it is there to be read, so it costs no round trip to know."""
    if not h.features.concurrent_writers:
        pytest.skip("there is no server")
    h.events()
    h.insert((1, h.at(days=-2)))
    h.backend.cut_connections(h.url)
    assert h.run_one().counts.deleted == 1


def test_a_connection_that_was_idle_for_long_is_asked(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end may have been lost on the way."""
    if not h.features.concurrent_writers:
        pytest.skip("there is no server")
    h.events()
    h.insert((1, h.at(days=-2)))
    monkeypatch.setattr(pooling, "_has_something_to_read", lambda descriptor: False)
    monkeypatch.setattr(pooling, "IDLE_SECONDS", -1.0)
    h.backend.cut_connections(h.url)
    assert h.run_one().counts.deleted == 1


def test_a_lost_connection_can_be_closed(h: Harness) -> None:
    if not h.features.concurrent_writers:
        pytest.skip("there is no server")
    h.events()
    connection = lapse.connect(h.url)
    connection.execute("INSERT INTO events (id) VALUES (1)")
    h.backend.cut_connections(h.url)
    with pytest.raises(lapse.OperationalError):
        connection.execute("ALTER TABLE events SET (ttl_pause = 'on')")
    connection.close()
    assert h.ids() == []
