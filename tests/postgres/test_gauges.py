"""What Lapse sees of the other sessions of a server."""

from __future__ import annotations

import psycopg
import pytest

from lapse.engines.postgres import gauges
from lapse.model.settings import Settings
from tests.conformance.harness import Harness


def foreground(h: Harness) -> float | None:
    with h.db.engine.connection() as connection:
        return next(
            gauge.value for gauge in gauges.read(connection, Settings.from_texts({})) if gauge.name == "foreground"
        )


def test_a_session_between_two_short_statements_is_at_work(
    h: Harness, client: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    h.events()
    client.execute("SELECT 1")
    monkeypatch.setattr(gauges, "_SERVER", gauges._SERVER.replace(gauges.RECENT, "interval '1 hour'"))
    assert foreground(h) == 1.0  # sessions of Lapse's own, which have been at work as well, are left out
    monkeypatch.setattr(gauges, "_SERVER", gauges._SERVER.replace("interval '1 hour'", "interval '0'"))
    assert foreground(h) == 0.0
