"""Whatever is done is on record, in an order and with a content that cannot be changed unnoticed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import datetime
from threading import Thread
from time import perf_counter
from typing import Any

import pytest
from sqlalchemy import delete, event, select, update
from sqlalchemy.exc import DBAPIError

from lapse.app import Lapse
from lapse.catalog import ledger as stored_ledger
from lapse.catalog import policies
from lapse.catalog.schema import ledger, policy
from lapse.errors import LapseError, NotFound
from lapse.model.actor import acting
from lapse.model.ledger import EntryKind, LedgerEntry
from lapse.model.statement import JobAction
from lapse.runner.ledger import seal
from tests.conformance.harness import Harness
from tests.conformance.test_idle import counted

WRITERS, EACH = 8, 5


def entries(h: Harness) -> list[LedgerEntry]:
    """Oldest first."""
    return h.owner.ledger(limit=1_000)[::-1]


def kinds(h: Harness) -> list[str]:
    return [each.kind for each in entries(h)]


def rewrite(h: Harness, *statements: Any) -> None:
    """As an owner of the catalog does it who wants to hide something."""
    with h.owner.engine.connection() as connection, h.owner.engine.atomic(connection):
        bound = h.owner.catalog.bind(connection)
        if h.owner.engine.name == "postgres":
            connection.exec_driver_sql("ALTER TABLE lapse_ttl.lapse_ledger DISABLE TRIGGER ALL")
        for statement in statements:
            bound.execute(statement)


def test_everything_that_is_done_is_on_record(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_job_cron = '@daily')")
    h.owner.pause("events")
    h.owner.resume("events")
    placed = h.owner.hold("events", "id = 1", reason="case 12")
    h.owner.release(placed.id)
    h.owner.set_setting("lapse_mode", "fast")
    h.owner.reset_setting("lapse_mode")
    h.owner.request_run("events")
    h.insert((1, h.at(days=-9)), (2, h.at(days=9)))
    h.run("events")
    h.sql("ALTER TABLE events RESET (ttl)")
    found = entries(h)
    assert " ".join(each.kind for each in found) == (
        "began declared changed paused confirmed confirmed resumed held released setting setting requested run removed"
    )
    assert [each.sequence for each in found] == list(range(1, len(found) + 1))
    assert {datetime.fromisoformat(each.at) for each in found} == {h.now}
    held, released, run = (next(each for each in found if each.kind == kind) for kind in ("held", "released", "run"))
    assert held.became["policy_version"] + 1 == released.was["policy_version"] == run.became["policy_version"]
    assert h.owner.verify_ledger().holds


def test_an_entry_says_who_and_what_it_was_before_and_after(h: Harness) -> None:
    h.events()
    with acting(user="alice", program="lapse console"):
        h.owner.set_setting("lapse_mode", "whisper")
        h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 60)")
    setting, changed = entries(h)[-2:]
    assert (setting.user, setting.program, setting.table) == ("alice", "lapse console", None)
    assert setting.was == {"setting": "lapse_mode", "value": None}
    assert setting.became == {"setting": "lapse_mode", "value": "whisper"}
    assert changed.table is not None and changed.table.name == "events"
    assert changed.became["version"] == changed.was["version"] + 1
    assert "delete_batch_size" not in json.dumps(changed.was["policy"])
    assert changed.became["policy"]["delete_batch_size"] == "60"
    assert (changed.role is None) is (not h.features.concurrent_writers)


def test_a_run_is_on_record_with_policy_cutoff_and_counts(h: Harness) -> None:
    h.events()
    h.insert(*((number, h.at(days=-9)) for number in range(1, 8)), (100, h.at(days=9)))
    h.run("events")
    (run,) = [each for each in entries(h) if each.kind == EntryKind.RUN]
    (job,) = h.db.history()
    assert run.became["job"] == job.id
    assert (run.became["deleted"], run.became["status"]) == (7, "finished")
    assert run.became["policy_version"] == job.policy_version
    assert run.became["cutoff"].startswith(f"{job.cutoff:%Y-%m-%dT%H:%M:%S}")


def test_what_is_archived_and_restored_is_on_record(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_archive = 'table:')")
    h.insert(*((number, h.at(days=-9)) for number in range(1, 4)))
    start = h.now
    h.run("events")
    h.owner.restore("events", where="id < 3")
    h.advance(minutes=1)
    found = entries(h)
    (run,) = [each.became for each in found if each.kind == EntryKind.RUN]
    (restored,) = [each.became for each in found if each.kind == EntryKind.RESTORED]
    assert run["deleted"] == 3 and "archive" in run
    assert restored["restored"] == 2 and restored["jobs"] == {str(run["job"]): 2}
    table = h.owner.certificate("events", since=start, until=h.now)["tables"][0]
    assert (table["deleted"], table["archived"], table["restored"]) == (3, 3, 2)
    assert h.owner.verify_ledger().holds


def test_a_job_that_is_told_something_is_on_record(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-9)))
    job = h.db.worker()._scheduler.run_once(only=h.db.policy("events")).jobs[0]
    h.db.control(job.id, JobAction.PAUSE)
    h.db.control(job.id, JobAction.CANCEL)
    assert kinds(h)[-3:] == [EntryKind.PAUSED, EntryKind.CANCELLED, EntryKind.RUN]


def test_what_is_rolled_back_is_not_on_record(h: Harness) -> None:
    """Together or not at all: where the statement fails, or the transaction of a migration."""
    h.events()
    before = kinds(h)
    with pytest.raises(LapseError):
        h.sql("ALTER TABLE events SET (ttl_expiration_expression = 'no_such_column')")
    with pytest.raises(RuntimeError), h.owner.catalog.writing() as connection:
        stored = policies.list_policies(connection)[0]
        policies.delete_policy(connection, stored, reason="", now=h.now)
        raise RuntimeError
    assert kinds(h) == before


CHANGES: dict[str, dict[str, Any]] = {
    "content": {"after_json": "{}"},
    "time": {"recorded_at": "2020-01-01T00:00:00.000000Z"},
    "kind": {"kind": "something else"},
    "who": {"user_name": "mallory"},
    "hash": {"hash": "f" * 64},
    "nothing": {"before_json": ""},
}


@pytest.mark.parametrize("what", list(CHANGES))
def test_a_changed_entry_is_named(h: Harness, what: str) -> None:
    h.events()
    h.owner.set_setting("lapse_mode", "fast")
    h.owner.set_setting("lapse_mode", "gentle")
    assert h.owner.verify_ledger().holds
    rewrite(h, update(ledger).where(ledger.c.sequence == 2).values(**CHANGES[what]))
    verdict = h.owner.verify_ledger()
    assert (verdict.holds, verdict.broken_at) == (False, 2)


def test_a_removed_a_moved_and_a_missing_entry_are_named(h: Harness) -> None:
    h.events()
    for mode in ("fast", "gentle", "whisper", "fast"):
        h.owner.set_setting("lapse_mode", mode)
    noted = h.owner.verify_ledger().head
    place = ledger.c.sequence
    with h.owner.catalog.reading() as connection:
        kept = connection.execute(select(ledger).order_by(ledger.c.entry_id)).mappings().all()

    def verdict(*statements: Any) -> Any:
        rewrite(h, *statements)
        found = h.owner.verify_ledger(noted)
        rewrite(h, delete(ledger), *(ledger.insert().values(**row) for row in kept))
        return found.broken_at, found.broken

    assert verdict(delete(ledger).where(place == 3)) == (3, "entry 3 is missing")
    swap = [update(ledger).where(place == old).values(sequence=new) for old, new in ((3, 99), (4, 3), (99, 4))]
    assert verdict(*swap)[0] == 3
    assert verdict(delete(ledger).where(place <= 2))[0] == 1
    assert verdict(delete(ledger).where(place >= noted.sequence))[0] == noted.sequence
    assert verdict(delete(ledger))[0] == 1
    assert h.owner.verify_ledger(noted).holds


def test_writers_at_the_same_time_do_not_fork_it(h: Harness) -> None:
    h.events()
    databases = [Lapse(h.url, clock=h.clock) for _ in range(WRITERS)]
    errors = list[Exception]()

    def write(db: Lapse) -> None:
        try:
            for _ in range(EACH):
                with db.catalog.writing() as connection:
                    stored_ledger.record(connection, EntryKind.REQUESTED, now=h.now)
                seal(db.catalog)
        except Exception as error:
            errors.append(error)

    threads = [Thread(target=write, args=(db,)) for db in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for db in databases:
        db.close()
    assert errors == []
    verdict = h.owner.verify_ledger()
    assert verdict.holds and verdict.waiting == 0
    assert kinds(h).count(EntryKind.REQUESTED) == WRITERS * EACH


def test_a_declaration_that_is_not_committed_keeps_no_job_from_ending(h: Harness) -> None:
    if not h.features.concurrent_writers or not h.features.transactional_ddl:
        pytest.skip("a transaction is the only one, or ends with every DDL")
    h.events()
    h.sql(f"CREATE TABLE other (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
    h.insert((1, h.at(days=-9)))
    with h.owner.session() as session:
        for text in ("BEGIN", "ALTER TABLE other SET (ttl_job_cron = '@daily')"):
            for statement in session.parse(text):
                session.execute(statement)
        assert h.db.run("events").deleted == 1
        assert h.owner.verify_ledger().holds
        for statement in session.parse("COMMIT"):
            session.execute(statement)
    assert h.owner.verify_ledger().holds
    assert max(entries(h), key=lambda each: each.sequence or 0).kind == EntryKind.CHANGED


def test_an_entry_that_is_not_committed_is_passed_by(h: Harness) -> None:
    """It keeps no other from being sealed, and gets its place once it is committed."""
    if not h.features.concurrent_writers:
        pytest.skip("a transaction is the only one")
    h.events()
    with h.owner.catalog.writing() as connection:
        stored_ledger.record(connection, EntryKind.REQUESTED, now=h.now)
        h.owner.set_setting("lapse_mode", "fast")
        started = perf_counter()
        seal(h.owner.catalog)
        assert perf_counter() - started < 5
        assert [each.kind for each in entries(h) if each.sequence][-1] == EntryKind.SETTING
    assert max(entries(h), key=lambda each: each.sequence or 0).kind == EntryKind.REQUESTED
    assert h.owner.verify_ledger().holds


def test_what_is_long_is_recorded_whole(h: Harness) -> None:
    h.events()
    reason = "é" * 20_000
    h.owner.hold("events", "id = 1", reason=reason)
    assert entries(h)[-1].became["reason"] == reason
    assert h.owner.verify_ledger().holds


def test_a_worker_killed_between_any_two_statements_leaves_a_whole_chain(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_guard = 'off')")
    h.insert(*((number, h.at(days=-2)) for number in range(1, 50)))
    survives = 40
    while True:
        command = [sys.executable, "-m", "tests.crashing", h.url, "events", str(survives), h.now.isoformat()]
        done = subprocess.run(command, capture_output=True, check=False)
        assert h.owner.verify_ledger().holds
        ended = {job.id: job.counts.deleted for job in h.owner.history() if not job.status.is_active}
        runs = [each.became for each in entries(h) if each.kind == EntryKind.RUN]
        assert {run["job"]: run["deleted"] for run in runs} == ended
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        h.advance(minutes=1)
        survives += 9


def test_old_entries_are_pruned_on_record(h: Harness) -> None:
    h.events()
    h.owner.set_setting("lapse_ledger_retention", "30 days")
    noted = h.owner.verify_ledger().head
    h.advance(days=40)
    h.owner.run("events")
    # All of it is old: its head stays, and what is recorded from now on follows it.
    verdict = h.owner.verify_ledger(noted)
    assert verdict.holds and verdict.pruned == noted.sequence - 1
    assert entries(h)[0].sequence == verdict.pruned + 1
    (pruned,) = [each for each in entries(h) if each.kind == EntryKind.PRUNED]
    assert pruned.was["last"] == verdict.pruned
    # Without that entry's word for it, the beginning is missing.
    rewrite(h, delete(ledger).where(ledger.c.sequence == verdict.pruned + 1))
    assert not h.owner.verify_ledger().holds


def test_what_it_costs(h: Harness) -> None:
    """One statement for a change, and two at the end of a run, which seal what was recorded."""
    h.events()
    h.run("events")
    h.advance(hours=2)
    with counted(h.db) as statements:
        h.db.run("events")
    about = [each for each in statements if "lapse_ledger" in each]
    assert len(about) == (3 if h.features.skips_locked else 4), about
    with counted(h.db) as statements:
        h.db.verify_ledger()
        h.db.run("events")
    assert sum("INSERT INTO" in each and "lapse_ledger" in each for each in statements) == 1


def test_entries_of_one_table(h: Harness) -> None:
    h.events()
    h.owner.set_setting("lapse_mode", "fast")
    assert {each.kind for each in h.owner.ledger("events")} == {EntryKind.DECLARED}
    h.sql("DROP TABLE events")
    newest = h.owner.ledger("events", limit=1)
    assert [each.kind for each in newest] == [EntryKind.REMOVED]
    older = h.owner.ledger("events", before=newest[0].id)
    assert [each.kind for each in older] == [EntryKind.DECLARED]
    with pytest.raises(NotFound):
        h.owner.ledger("evnets")


def test_a_catalog_of_before_begins_with_what_there_is(h: Harness) -> None:
    h.events()
    with h.owner.catalog.writing() as connection:
        stored_ledger.begin(connection, h.now)
    found = entries(h)[-1]
    assert found.kind == EntryKind.FOUND and found.became["version"] == 1
    assert h.owner.verify_ledger().holds


def test_what_cannot_be_recorded_is_not_done(h: Harness) -> None:
    h.events()
    engine = h.owner.engine.database

    def refuse(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "INSERT INTO" in statement and "lapse_ledger" in statement:
            raise DBAPIError("", {}, Exception("the disk is full"))

    event.listen(engine, "before_cursor_execute", refuse)
    try:
        with pytest.raises(LapseError):
            h.owner.set_setting("lapse_mode", "fast")
    finally:
        event.remove(engine, "before_cursor_execute", refuse)
    assert h.owner.settings()["lapse_mode"] == "gentle"
    with h.owner.catalog.reading() as connection:
        assert connection.execute(select(policy.c.version)).scalars().all() == [1]
