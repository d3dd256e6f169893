"""What receivers are told, how it is signed, and what a hostile name, receiver or setting can do with it: nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lapse.app import Lapse, notifying, receivers
from lapse.app.receivers import CommandReceiver, Webhook, read_receivers
from lapse.catalog import events, settings
from lapse.cli import main
from lapse.clock import ManualClock
from lapse.errors import DatabaseError, InvalidValue, NotPermitted, UsageError
from lapse.runner import guard
from tests.receiving import Receiver
from tests.serving import Process, serving

START = datetime(2026, 3, 15, 12, 0, 0, tzinfo=UTC)
OLD = "'2026-03-01 00:00:00'"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def db(tmp_path: Path, clock: ManualClock) -> Iterator[Lapse]:
    with Lapse(f"sqlite:///{tmp_path}/app.db", clock=clock) as db:
        yield db


def _declare(db: Lapse, table: str = "events") -> None:
    db.execute(f'CREATE TABLE "{table}" (id INTEGER PRIMARY KEY, ts TIMESTAMP) TTL = ts + INTERVAL 1 DAY')


def _notify(db: Lapse, receiver: Receiver, secret: str | None = None) -> None:
    db.notifier([Webhook(receiver.url, secret)]).run_once()


def test_every_kind_begins_and_ends(db: Lapse, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(kind: str) -> list[tuple[str, str]]:
        told, receiver.accepted[:] = receiver.told(), []
        assert told == [(kind, "began"), (kind, "cleared")]
        return told

    monkeypatch.setattr(guard, "SMALL_TABLE_ROWS", 1)
    _declare(db)
    db.execute(f"INSERT INTO events (ts) VALUES ({OLD}), ({OLD})")
    db.run()
    _notify(db, receiver)
    db.resume("events")
    db.run()
    _notify(db, receiver)
    both("first_run_held")

    db.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, event_id INTEGER REFERENCES events (id))")
    db.execute(f"INSERT INTO events (id, ts) VALUES (7, {OLD})")
    db.execute("INSERT INTO notes (event_id) VALUES (7)")
    db.run("events")
    _notify(db, receiver)
    assert receiver.accepted[0]["code"] == "rows_held"
    db.execute("DELETE FROM notes")
    db.run("events")
    _notify(db, receiver)
    both("table_blocked")

    db.execute(f"INSERT INTO events (id, ts) VALUES (8, {OLD})")
    with monkeypatch.context() as broken:

        def fail(*arguments: object, **keywords: object) -> None:
            raise DatabaseError("the disk is broken")

        broken.setattr(type(db.engine), "choose_path", fail)
        db.run("events")
    _notify(db, receiver)
    assert "the disk is broken" in receiver.accepted[0]["reason"]
    db.run("events")
    _notify(db, receiver)
    both("job_failed")

    with db.catalog.writing() as connection:
        settings.hold_clock(connection, "the clock jumped", START)
    _notify(db, receiver)
    assert (receiver.accepted[0]["table"], receiver.accepted[0]["code"]) == (None, "clock")
    db.confirm_clock()
    _notify(db, receiver)
    both("clock_odd")

    first, second = db.hold("events", "id = 7", reason="case 12"), db.hold("events")
    _notify(db, receiver)
    told = {str(each["code"]): each for each in receiver.accepted}
    assert set(told) == {str(first.id), str(second.id)}
    assert "keeps rows with id = 7" in told[str(first.id)]["reason"] and "case 12" in told[str(first.id)]["text"]
    receiver.accepted.clear()
    db.release(first.id)
    _notify(db, receiver)
    assert [(each["code"], each["state"]) for each in receiver.accepted] == [(str(first.id), "cleared")]


def test_a_worker_that_dies_after_sending_sends_the_same_id_again(
    db: Lapse, clock: ManualClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "CLAIM_SECONDS", 0.0)
    _declare(db)
    clock.advance(timedelta(days=2))

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(events, "finish_notice", die)
        with pytest.raises(KeyboardInterrupt):
            _notify(db, receiver)
    _notify(db, receiver)
    first, second = receiver.accepted
    assert first["id"] == second["id"]
    _notify(db, receiver)
    assert len(receiver.accepted) == 2


def test_the_event_of_a_policy_that_goes_is_over(db: Lapse, clock: ManualClock, receiver: Receiver) -> None:
    _declare(db)
    clock.advance(timedelta(days=2))
    _notify(db, receiver)
    db.execute("ALTER TABLE events RESET (ttl)")
    _notify(db, receiver)
    assert receiver.told() == [("table_late", "began"), ("table_late", "cleared")]


def test_notices_are_signed_and_names_call_nobody(db: Lapse, clock: ManualClock, receiver: Receiver) -> None:
    _declare(db, "<!channel> & co")
    clock.advance(timedelta(days=2))
    _notify(db, receiver, "a secret")
    (told,), (body,), (headers,) = receiver.accepted, receiver.bodies, receiver.headers
    assert "table &lt;!channel&gt; &amp; co of " in told["text"]
    assert told["table"] == "<!channel> & co"
    assert headers["Lapse-Notice-Id"] == told["id"]
    moment, digest = (part.split("=")[1] for part in headers["Lapse-Signature"].split(","))
    assert digest == hmac.new(b"a secret", f"{moment}.".encode() + body, hashlib.sha256).hexdigest()


def test_a_redirect_is_not_followed(db: Lapse, clock: ManualClock, receiver: Receiver) -> None:
    _declare(db)
    clock.advance(timedelta(days=2))
    receiver.status = 302
    _notify(db, receiver)
    assert (receiver.accepted, receiver.refused) == ([], 1)


def test_a_refused_notice_keeps_no_other_back(
    db: Lapse, clock: ManualClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 400 is about one notice, 500 and silence about all."""
    for name in ("a", "b", "c"):
        _declare(db, name)
    clock.advance(timedelta(days=2))
    receiver.status = 400
    _notify(db, receiver)
    assert receiver.refused == 3
    monkeypatch.setattr(notifying, "BACKOFF_SECONDS", 0.0)
    _declare(db, "d")
    clock.advance(timedelta(days=2))
    receiver.status = 200
    _notify(db, receiver)
    assert [told["table"] for told in receiver.accepted] == ["d"]


def test_a_command_is_told_on_its_standard_input(
    db: Lapse, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "BACKOFF_SECONDS", 0.0)
    monkeypatch.setenv("LAPSE_URL", "postgresql://user:password@host/db")
    program = tmp_path / "hook.py"
    program.write_text(
        "import json, os, sys\n"
        "told = json.load(sys.stdin) | {'secrets': [name for name in os.environ if name.startswith('LAPSE_')]}\n"
        "print(json.dumps(told), file=open('told.jsonl', 'a'))\n"
        "sys.exit(not os.path.exists('ready'))\n"
    )
    monkeypatch.chdir(tmp_path)
    _declare(db, "x; touch hacked #")
    clock.advance(timedelta(days=2))
    notifier = db.notifier([CommandReceiver(f"{sys.executable} hook.py")])
    notifier.run_once()
    Path("ready").touch()
    notifier.run_once()
    notifier.run_once()
    first, second = (json.loads(line) for line in Path("told.jsonl").read_text().splitlines())
    assert first == second
    assert (first["table"], first["secrets"]) == ("x; touch hacked #", [])
    assert not Path("hacked").exists()


def test_a_command_that_hangs_is_killed(db: Lapse, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "COMMAND_SECONDS", 0.3)
    _declare(db)
    clock.advance(timedelta(days=2))
    db.notifier([CommandReceiver("sh -c 'sleep 60 & wait'")]).run_once()
    with db.catalog.reading() as connection:
        error = connection.exec_driver_sql("SELECT last_error FROM lapse_notice").scalar_one()
    assert "did not end within" in error


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/x", "hook-7f3", "https:///x", "http://a b/", "http://[x/"]
)
def test_urls_that_cannot_work_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_receivers({"LAPSE_NOTIFY_URL": url}, None, None)
    assert url not in str(raised.value)


def test_what_cannot_work_is_refused() -> None:
    for environment in (
        {"LAPSE_NOTIFY_URL": "https://user:pw@host/"},
        {"LAPSE_NOTIFY_SECRET": "x"},
        {"LAPSE_NOTIFY_COMMAND": "/no/such/program"},
        {"LAPSE_NOTIFY_COMMAND": "sh -c 'open"},
    ):
        with pytest.raises(UsageError):
            read_receivers(environment, None, None)


@pytest.mark.parametrize("name", ["lapse_notify_url", "LAPSE_NOTIFY_COMMAND"])
def test_no_setting_says_where_notices_go(db: Lapse, receiver: Receiver, name: str) -> None:
    with pytest.raises(InvalidValue, match="is not kept in the database") as raised:
        db.set_setting(name, receiver.url)
    assert raised.value.hint is not None
    assert f"${name.upper()}" in raised.value.hint


def test_a_killed_worker_loses_nothing(tmp_path: Path, receiver: Receiver) -> None:
    """Real processes: the worker is killed while the receiver is away, both come back."""
    url = f"sqlite:///{tmp_path}/app.db"
    with Lapse(url, clock=ManualClock(datetime.now(UTC) - timedelta(days=3))) as db:
        _declare(db)
        db.execute("ALTER TABLE events SET (ttl_grace = '100 days')")
    receiver.stop()
    arguments = ("worker", url, "--log-format", "json")
    worker = Process(*arguments, LAPSE_NOTIFY_URL=receiver.url)
    try:
        worker.wait_for("the receiver cannot be reached")
    finally:
        worker.kill()
    receiver.start()
    with Lapse(url) as db, db.catalog.writing() as connection:
        # The pause after a failure is not what is tested.
        connection.exec_driver_sql("UPDATE lapse_notice SET not_before = '2020-01-01 00:00:00.000000'")
    with serving(*arguments, LAPSE_NOTIFY_URL=receiver.url) as worker:
        receiver.wait_for(1)
    assert receiver.told() == [("table_late", "began")]
    assert all("secret-path" not in line for line in worker.lines)


def test_rights_that_are_missing_are_told_and_a_run_is_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    with Lapse(url) as db:
        _declare(db)

    def refuse(*arguments: object) -> None:
        raise NotPermitted("SELECT on lapse_event is denied", hint="GRANT SELECT")

    monkeypatch.setattr(events, "lasting_events", refuse)
    monkeypatch.setenv("LAPSE_NOTIFY_URL", "http://127.0.0.1:9/")
    assert main(["run", url]) == 0
    said = capsys.readouterr().err
    assert "SELECT on lapse_event is denied; GRANT SELECT" in said
