"""Keys of deleted rows: each row that a job deletes leaves a keyed hash, and no other row does."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, select, update

from lapse.catalog.schema import ledger_key, secret
from lapse.errors import InvalidValue, LapseError, NotFound, Unsupported
from lapse.model.job import JobStatus, PathKind
from lapse.model.ledger import EntryKind
from lapse.model.ledger_keys import GROUPED, HASH_BYTES, RECORD_BYTES, SALT_BYTES, Noted
from lapse.runner.events import BatchDone, NullListener
from tests.conformance.harness import Harness
from tests.safety.crash import CrashAfter, dying

KEYS = "ttl_ledger_keys = 'on', ttl_guard = 'off'"


def keyed_events(h: Harness, more: str = KEYS, *, expired: int = 30, extra: str = "") -> None:
    """Rows 1 to `expired` have expired, and two more have not."""
    if not h.features.records_keys:
        pytest.skip("keys cannot be recorded")
    h.events(extra=extra)
    h.sql(f"ALTER TABLE events SET ({more})")
    h.insert(*((number, h.at(days=-2)) for number in range(1, expired + 1)))
    h.insert(*((number, h.at(hours=-2)) for number in (expired + 1, expired + 2)))


def on_record(h: Harness, *keys: object) -> list[object]:
    """Those of the keys that a row had which was deleted, each as often as that happened."""
    return [key for key in keys for _ in h.owner.deleted("events", key).found]


def number_stored(h: Harness) -> int:
    with h.owner.catalog.reading() as connection:
        found = connection.execute(select(ledger_key.c.row_count, ledger_key.c.digest, ledger_key.c.hashes)).all()
    for rows, digest, hashes in found:
        grouped = str(digest).startswith(GROUPED)
        noted = Noted(secret=0, rows=rows, hashes=bytes(hashes), grouped=grouped)
        assert noted.is_whole and noted.digest == digest
    return sum(rows for rows, _, _ in found)


@pytest.mark.parametrize(("batch", "index", "more"), [
    (1, False, ""), (7, True, ""), (1000, False, ""),
    (7, False, ", ttl_archive = 'table:'"), (1000, True, ", ttl_archive = 'table:'"),
])  # fmt: skip
def test_each_deleted_row_leaves_its_key(h: Harness, batch: int, index: bool, more: str) -> None:
    keyed_events(h, f"{KEYS}, ttl_delete_batch_size = {batch}, ttl_adaptive = 'off'{more}")
    if index:
        h.sql("CREATE INDEX events_ts ON events (ts)")
    job = h.run_one()
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 30)
    assert job.path.kind is (PathKind.INDEX if index else PathKind.PHYSICAL)
    assert on_record(h, *range(1, 40)) == list(range(1, 31))
    assert number_stored(h) == 30
    history = h.owner.deleted("events", 7)
    (row,) = history.found
    assert (row.job, history.rows) == (job.id, 30)
    assert row.entry is not None and row.entry.became["policy_version"] == job.policy_version
    assert row.entry.became["keys"]["rows"] == 30
    assert h.owner.verify_ledger().holds


def test_many_rows_in_many_batches(h: Harness) -> None:
    """More than one window, so that every statement an engine has for a batch is used."""
    keyed_events(h)
    for start in range(1000, 13_000, 3000):
        h.insert(*((number, h.at(days=-2 if number % 3 else 0)) for number in range(start, start + 3000)))
    assert h.run_one().counts.deleted == 8030
    assert number_stored(h) == 8030
    some = [*range(1, 34), *range(1000, 1100), *range(12_900, 13_000)]
    assert on_record(h, *some) == [key for key in some if key <= 30 or (key >= 1000 and key % 3)]
    assert h.owner.verify_ledger().holds


@pytest.mark.parametrize("share", [1, 2, 20])
def test_text_in_many_batches(h: Harness, share: int) -> None:
    """Where all, half or few of the rows have expired, with values that a list of them would have to tell apart."""
    if not h.features.records_keys:
        pytest.skip("keys cannot be recorded")
    h.events(key="id VARCHAR(40) PRIMARY KEY")
    h.sql(f"ALTER TABLE events SET ({KEYS}, ttl_delete_batch_size = 400, ttl_adaptive = 'off')")
    keys = [f"{number:04}, é" for number in range(4000)]
    for start in range(0, 4000, 2000):
        rows = [
            f"('{key}', {h.at(days=-2 if (start + place) % share == 0 else 0)})"
            for place, key in enumerate(keys[start : start + 2000])
        ]
        h.sql(f"INSERT INTO events (id, ts) VALUES {', '.join(rows)}")
    assert h.run_one().counts.deleted == number_stored(h) == 4000 // share
    some = [*keys[:21], *keys[-21:]]
    assert on_record(h, *some) == [key for key in some if int(key[:4]) % share == 0]


def test_numbers_with_and_without_neighbours(h: Harness) -> None:
    """Also negative ones, and the first and the last there are; the digest tells the form."""
    if not h.features.records_keys:
        pytest.skip("keys cannot be recorded")
    h.events()
    h.sql(f"ALTER TABLE events SET ({KEYS})")
    for keys in (
        [*range(-40, 40, 3), 2**63 - 1, 2**63 - 2, -(2**63), 1 - 2**63],
        [1000 * number for number in range(1, 9)],
    ):
        h.insert(*((key, h.at(days=-2)) for key in keys))
        assert h.run_one().counts.deleted == len(keys)
        near = sorted({key + by for key in keys for by in (-1, 0, 1) if -(2**63) <= key + by < 2**63} - {0})
        assert on_record(h, *near) == [key for key in near if key in keys]
    with h.owner.catalog.reading() as connection:
        digests = connection.execute(select(ledger_key.c.digest).order_by(ledger_key.c.batch_id)).scalars().all()
    assert digests[0].startswith(GROUPED) and not digests[-1].startswith(GROUPED)
    assert h.owner.verify_ledger().holds


def test_a_row_that_comes_back_and_goes_again_is_listed_twice(h: Harness) -> None:
    keyed_events(h)
    first = h.run_one().id
    h.advance(minutes=1)
    h.insert((7, h.at(days=-2)))
    second = h.run_one().id
    history = h.owner.deleted("events", 7)
    assert [row.job for row in history.found] == [first, second]
    assert [row.at for row in history.found] == [history.since, history.until] and history.since < history.until


def test_rows_that_stay_leave_no_key(h: Harness) -> None:
    """Renewed meanwhile, held, or referred to by others."""
    keyed_events(h, f"{KEYS}, ttl_delete_batch_size = 5, ttl_adaptive = 'off'")
    h.sql(
        f"CREATE TABLE children (id {h.backend.bigint} PRIMARY KEY, event {h.backend.bigint},"
        " FOREIGN KEY (event) REFERENCES events (id))"
    )
    h.sql("INSERT INTO children (id, event) VALUES (1, 3), (2, 29)")
    h.owner.hold("events", "id = 11")
    renewed: list[int] = []

    class Renewing(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            if not renewed:
                renewed.append(20)
                with h.client() as client:
                    client.exec_driver_sql(f"UPDATE events SET ts = {h.at()} WHERE id = 20")

    h.db.run("events", listener=Renewing())
    assert h.ids() == [3, 11, 20, 29, 31, 32]
    assert on_record(h, *range(1, 33)) == [key for key in range(1, 33) if key not in h.ids()]
    assert h.owner.verify_ledger().holds


@pytest.mark.parametrize("key", ["TEXT", "UUID", "BINARY", "DECIMAL", "DATE"])
def test_keys_of_every_kind(h: Harness, key: str) -> None:
    """Written in another way than the database does, where there is one."""
    kinds = {
        "TEXT": ("VARCHAR(40)", ["'Zoë'", "'a,b'", "''"], ["Zoë", "a,b", ""]),
        "UUID": (
            "UUID" if h.features.uuid_type else "CHAR(36)",
            ["'3f06af63-a93c-11e4-9797-00505690773f'"],
            ["3f06af63-a93c-11e4-9797-00505690773f"],
        ),
        "BINARY": (
            "BYTEA" if h.owner.engine.name == "postgres" else "VARBINARY(16)",
            ["'\\x00ff27'" if h.owner.engine.name == "postgres" else "x'00ff27'"],
            ["0x00ff27", "\\x00FF27"],
        ),
        "DECIMAL": ("DECIMAL(12, 3)", ["10.500", "-3"], ["10.5", "-3.000"]),
        "DATE": ("DATE", ["'2020-02-29'"], ["2020-02-29"]),
    }
    kind, written, asked = kinds[key]
    h.events(key=f"id {kind} PRIMARY KEY")
    h.sql(f"ALTER TABLE events SET ({KEYS})")
    for value in written:
        h.sql(f"INSERT INTO events (id, ts) VALUES ({value}, {h.at(days=-2)})")
    assert h.run_one().counts.deleted == len(written)
    assert [len(h.owner.deleted("events", each).found) for each in asked] == [1] * len(asked)
    with pytest.raises(InvalidValue, match="primary key"):
        h.owner.deleted("events", "1", "2")


def test_keys_of_several_columns(h: Harness) -> None:
    """No two of them are the same text, put together."""
    big = h.backend.bigint
    h.events(key=f"tenant VARCHAR(20) NOT NULL, id {big} NOT NULL", extra=", PRIMARY KEY (tenant, id)")
    h.sql(f"ALTER TABLE events SET ({KEYS})")
    h.sql(f"INSERT INTO events (tenant, id, ts) VALUES ('a', 11, {h.at(days=-2)}), ('a1', 1, {h.at(days=2)})")
    assert h.run_one().counts.deleted == 1
    assert len(h.owner.deleted("events", "a", 11).found) == 1
    assert [h.owner.deleted("events", *key).found for key in (("a1", 1), ("a", 1), ("a,11", 11))] == [()] * 3


def test_what_cannot_be_recorded_is_refused(h: Harness) -> None:
    big = h.backend.bigint
    h.sql(f"CREATE TABLE plain (id {big} NOT NULL, ts {h.backend.instant}, UNIQUE (id))")
    h.sql("ALTER TABLE plain TTL = ts + INTERVAL 1 DAY")
    with pytest.raises(Unsupported, match="no primary key"):
        h.sql(f"ALTER TABLE plain SET ({KEYS})")
    h.sql(
        f"CREATE TABLE tree (id {big} PRIMARY KEY, up {big}, ts {h.backend.instant},"
        " FOREIGN KEY (up) REFERENCES tree (id) ON DELETE CASCADE)"
    )
    h.sql("ALTER TABLE tree TTL = ts + INTERVAL 1 DAY")
    with pytest.raises(Unsupported, match="foreign key"):
        h.sql(f"ALTER TABLE tree SET ({KEYS})")
    with pytest.raises(InvalidValue, match="'on' or 'off'"):
        h.sql("ALTER TABLE tree SET (ttl_ledger_keys = 'sha256')")
    assert not h.owner.policy("plain").policy.ledger_keys


def test_a_table_whose_keys_were_never_recorded(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)))
    h.run_one()
    assert number_stored(h) == 0
    with pytest.raises(NotFound, match="on record"):
        h.owner.deleted("events", 1)
    with pytest.raises(NotFound):
        h.owner.deleted("evnets", 1)


def test_switched_on_while_a_job_runs(h: Harness) -> None:
    """From the moment a declaration returns every row that goes leaves its key."""
    keyed_events(h, "ttl_guard = 'off', ttl_delete_batch_size = 5, ttl_adaptive = 'off'")
    left: list[int] = []

    class Declaring(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            if not left:
                h.owner.execute(f"ALTER TABLE events SET ({KEYS})")
                left.extend(h.ids())

    h.db.run("events", listener=Declaring())
    h.db.run("events")
    assert h.ids() == [31, 32]
    assert on_record(h, *range(1, 33)) == left[:-2]
    h.sql("ALTER TABLE events RESET (ttl_ledger_keys)")
    h.insert((50, h.at(days=-2)))
    assert h.run_one().counts.deleted == 1
    assert on_record(h, 1, left[0], 50) == [left[0]]
    assert h.owner.verify_ledger().holds


def test_a_table_that_was_renamed_or_is_gone(h: Harness) -> None:
    keyed_events(h)
    h.run_one()
    h.sql("ALTER TABLE events RENAME TO happenings")
    h.insert((50, h.at(days=-2)), table="happenings")
    assert h.run_one("happenings").counts.deleted == 1
    assert on_record(h, 7, 50) == [7]
    assert len(h.owner.deleted("happenings", 50).found) == 1
    h.sql("DROP TABLE happenings")
    assert len(h.owner.deleted("happenings", 50).found) == 1


def test_hashes_need_the_secret_and_no_two_tables_share_one(h: Harness) -> None:
    keyed_events(h)
    h.sql(f"CREATE TABLE others (id {h.backend.bigint} PRIMARY KEY, ts {h.backend.instant}) TTL = ts + INTERVAL 1 DAY")
    h.sql(f"ALTER TABLE others SET ({KEYS})")
    for table in ("events", "others"):
        # The same keys, with neighbours and without, and in one table twice.
        h.sql(f"DELETE FROM {table}")
        for keys in (range(1, 31), (7,), (7,), range(1, 31)):
            h.insert(*((key, h.at(days=-2)) for key in keys), table=table)
            assert h.run_one(table).counts.deleted == len(keys)
    with h.owner.catalog.reading() as connection:
        stored = connection.execute(select(ledger_key.c.hashes).order_by(ledger_key.c.batch_id)).scalars().all()
        secrets = connection.execute(select(secret.c.value)).scalars().all()
    assert {len(each) for each in stored} == {HASH_BYTES, SALT_BYTES + RECORD_BYTES}
    pieces = [bytes(each)[n : n + HASH_BYTES] for each in stored for n in range(0, len(each), HASH_BYTES)]
    # A hash of a key alone is the same each time; of neighbours nothing is the same in two batches.
    assert len(pieces) == 20 and len(set(pieces)) == 18
    assert len(set(secrets)) == 2 and {len(each) for each in secrets} == {32}
    assert len(h.owner.deleted("events", 7).found) == 4
    with h.owner.catalog.writing() as connection:
        connection.execute(delete(secret))
    with pytest.raises(LapseError, match="secret"):
        h.owner.deleted("events", 7)


@pytest.mark.parametrize("how", ["changed", "removed", "added"])
def test_what_was_tampered_with_is_noticed(h: Harness, how: str) -> None:
    keyed_events(h, f"{KEYS}, ttl_delete_batch_size = 7, ttl_adaptive = 'off'")
    job = h.run_one().id
    with h.owner.catalog.writing() as connection:
        if h.owner.engine.name == "postgres":
            connection.exec_driver_sql("ALTER TABLE lapse_ttl.lapse_ledger_key DISABLE TRIGGER ALL")
        row = dict(connection.execute(select(ledger_key).limit(1)).mappings().one())
        same = ledger_key.c.batch_id == row.pop("batch_id")
        if how == "changed":
            hashes = bytes(row["hashes"])
            changed = bytes([hashes[0] ^ 1]) + hashes[1:]
            connection.execute(update(ledger_key).where(same).values(hashes=changed))
        elif how == "removed":
            connection.execute(delete(ledger_key).where(same))
        else:
            connection.execute(ledger_key.insert().values(row))
    verdict = h.owner.verify_ledger()
    (run,) = [each for each in h.owner.ledger() if each.kind == EntryKind.RUN]
    assert verdict.broken_at == run.sequence and f"job {job}" in str(verdict.broken)


def test_keys_go_with_the_entry_of_their_job(h: Harness) -> None:
    keyed_events(h)
    h.run_one()
    h.advance(days=10)
    h.insert((50, h.at(days=-2)))
    h.run_one()
    h.owner.set_setting("lapse_ledger_retention", "5 days")
    h.owner.worker().run()
    assert on_record(h, 7, 50) == [50]
    verdict = h.owner.verify_ledger()
    assert verdict.holds and verdict.pruned


def test_a_worker_that_dies_anywhere_leaves_each_key_once(h: Harness) -> None:
    keyed_events(h, f"{KEYS}, ttl_delete_batch_size = 10, ttl_adaptive = 'off'")
    for statements in range(1, 200, 17):
        doomed = h.open()
        crash = CrashAfter(doomed, statements)
        with dying():
            doomed.run("events")
        doomed.close()
        h.advance(minutes=1)
        assert number_stored(h) == 32 - len(h.ids())
        if not crash.crashed:
            break
    h.db.run("events")
    assert h.ids() == [31, 32]
    assert on_record(h, *range(1, 33)) == list(range(1, 31))
    assert h.owner.verify_ledger().holds


def test_partitions_are_emptied_before_they_are_dropped(h: Harness) -> None:
    if not (h.features.partitions and h.features.table_locks):
        pytest.skip("there are no partitions that can be dropped")
    old, day = h.at(days=-40), h.at(days=-50)
    if h.owner.engine.dialect == "postgres":
        h.sql(
            "CREATE TABLE events (id bigint, ts timestamptz NOT NULL, PRIMARY KEY (id, ts)) PARTITION BY RANGE (ts);"
            f" CREATE TABLE p0 PARTITION OF events FOR VALUES FROM (MINVALUE) TO ({old}::timestamptz)"
        )
    else:
        h.sql(
            "CREATE TABLE events (id BIGINT, ts DATETIME(3) NOT NULL, PRIMARY KEY (id, ts)) PARTITION BY RANGE"
            f" COLUMNS (ts) (PARTITION p0 VALUES LESS THAN ({old}), PARTITION p1 VALUES LESS THAN (MAXVALUE))"
        )
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    found = h.sql(f"ALTER TABLE events SET (ttl_partition_drop = 'on', {KEYS})")
    assert any("row by row" in notice for notice in found.notices)
    h.sql(f"INSERT INTO events (id, ts) VALUES (1, {day}), (2, {day})")
    result = h.run("events")
    assert not result.failed and not result.skipped
    assert sum(job.counts.deleted for job in result.jobs) == 2
    assert all(job.path.kind is not PathKind.PARTITION for job in result.jobs)
    assert len(h.owner.deleted("events", 1, day.strip("'")).found) == 1
