"""Each event is told once when it begins and once when it is over, by one of all workers, and never lost."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier, Thread

import pytest

from lapse.app import notifying
from lapse.app.receivers import Webhook
from tests.conformance.harness import Harness
from tests.receiving import Receiver

LATE = [("table_late", "began"), ("table_late", "cleared")]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


def _notify(h: Harness, receiver: Receiver) -> None:
    """As a worker that has just been started."""
    with h.open() as db:
        db.notifier([Webhook(receiver.url, None)]).run_once()


def test_an_event_survives_restarts_of_worker_and_receiver(
    h: Harness, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setattr(notifying, "CLAIM_SECONDS", 0.0)
    h.events()
    h.insert((1, h.at(days=-2)))
    h.run()
    _notify(h, receiver)
    assert receiver.told() == []

    h.advance(days=2)
    receiver.stop()
    _notify(h, receiver)
    receiver.start()
    receiver.status = 500
    _notify(h, receiver)
    assert (receiver.told(), receiver.refused) == ([], 1)

    # It is over before anyone was told: both are told, in their order.
    h.run()
    _notify(h, receiver)
    receiver.status = 200
    _notify(h, receiver)
    _notify(h, receiver)
    assert receiver.told() == LATE
    began, cleared = receiver.accepted
    assert began["event"] == cleared["event"]
    assert began["id"] != cleared["id"]
    assert began["table"].endswith("events")
    assert (began["cleared_at"], cleared["cleared_at"]) == (None, h.now.isoformat())
    _notify(h, receiver)
    assert len(receiver.accepted) == 2


def test_of_several_workers_one_tells(h: Harness, receiver: Receiver) -> None:
    h.events()
    h.advance(days=2)
    together, databases, errors = Barrier(4), [h.open() for _ in range(4)], list[BaseException]()

    def look(number: int) -> None:
        notifier = databases[number].notifier([Webhook(receiver.url, None)])
        together.wait()
        try:
            for _ in range(3):
                notifier.run_once()
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=look, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for db in databases:
        db.close()
    assert errors == []
    assert receiver.told() == LATE[:1]
