"""A Galera cluster: a node dies in the middle of a job, two nodes want the same, one node holds the others up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Barrier, Event, Thread
from time import monotonic, sleep

import pymysql
import pytest

from lapse.app import Lapse
from lapse.errors import LapseError, Retryable
from lapse.model.job import JobStatus
from lapse.runner.controller import Controller
from tests.backends.mariadb import MariadbBackend
from tests.chaos import audit
from tests.chaos.driver import ROOT, Books, Chaos, Plan
from tests.galera.cluster import GaleraCluster, GaleraNode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TABLES = 4
EXPIRED, LIVE = 8_000, 1_000
STORM = Plan(seconds=float(os.environ.get("LAPSE_CHAOS_SECONDS", "30")), tables=5, workers=4, clients=3)


def _url(node: GaleraNode, database: str) -> str:
    return f"{node.url}/{database}"


@contextmanager
def _workers(*urls: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-m", "tests.chaos.worker"]
    started = [
        subprocess.Popen(
            [*command, url], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for url in urls
    ]
    try:
        yield started
    finally:
        for worker in started:
            worker.send_signal(signal.SIGTERM)
        for worker in started:
            worker.wait(60)


def _wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, what
        sleep(0.05)


def _synced(cluster: GaleraCluster, database: str, sql: str) -> list[list[tuple[object, ...]]]:
    """The answer of each node, after everything before has reached it."""
    return [node.execute("SET wsrep_sync_wait = 1", sql, database=database) for node in cluster.nodes]


def _prepare(db: Lapse, *, batch: int = 20) -> None:
    audit.install(db, MariadbBackend.instant)
    for number in range(TABLES):
        db.execute(f"CREATE TABLE t{number} (id BIGINT AUTO_INCREMENT PRIMARY KEY, expires_at TIMESTAMP(3) NULL)")
        for old, rows in (("'2020-01-01'", EXPIRED), ("NULL", LIVE // 2), ("'2037-01-01'", LIVE // 2)):
            db.execute(f"INSERT INTO t{number} (expires_at) SELECT {old} FROM seq_1_to_{rows}")
        audit.watch(db, f"t{number}")
        db.execute(
            f"ALTER TABLE t{number} SET (ttl_expiration_expression = 'expires_at', ttl_guard = 'off',"
            f" ttl_adaptive = 'off', ttl_delete_batch_size = {batch})"
        )


def _deleted(db: Lapse) -> int:
    return sum(job.counts.deleted for job in db.history(limit=100))


def _owned_by(db: Lapse, workers: list[subprocess.Popen[bytes]]) -> list[str]:
    """Tasks that these are at work on."""
    rows = db.execute("SELECT owner_id FROM lapse_task WHERE status = 'running'").rows
    return [owner for (owner,) in rows if any(f"-{worker.pid}-" in owner for worker in workers)]


def test_a_node_killed_in_the_middle_of_jobs_loses_nothing(cluster: GaleraCluster, database: str) -> None:
    first, second, third = cluster.nodes
    with Lapse(_url(third, database)) as db:
        _prepare(db)
        db.set_setting("lapse_heartbeat_interval", "1 second")
        with _workers(_url(first, database), _url(first, database), _url(second, database)) as workers:
            _wait_until(
                lambda: _deleted(db) > EXPIRED // 4 and bool(_owned_by(db, workers[:2])), "the workers did not begin"
            )
            first.kill()
            assert _deleted(db) < TABLES * EXPIRED
            left_behind = _owned_by(db, workers[:2])
            assert left_behind, "nobody had to take anything over"
            _wait_until(lambda: not db.jobs(), "nobody took the jobs over")
            first.start()
        jobs = db.history(limit=100)
        assert {job.status for job in jobs} == {JobStatus.FINISHED}
        assert sum(job.counts.deleted for job in jobs) == TABLES * EXPIRED
        assert db.execute("SELECT count(*), count(DISTINCT tbl, id) FROM audit WHERE op = 'D'").rows == (
            (TABLES * EXPIRED, TABLES * EXPIRED),
        )
    for number in range(TABLES):
        alive = f"SELECT count(*), sum(expires_at IS NULL), sum(expires_at > '2036-01-01') FROM t{number}"
        assert _synced(cluster, database, alive) == [[(LIVE, LIVE // 2, LIVE // 2)]] * 3


def test_a_row_renewed_on_another_node_survives(cluster: GaleraCluster, database: str) -> None:
    """Its locks are unknown here, and the renewal may not have arrived yet: then the commit fails and is repeated."""
    first, second, third = cluster.nodes
    renewed: set[int] = set()
    stop = Event()

    def renew() -> None:
        connection = third.connect(database)
        with connection, connection.cursor() as cursor:
            number = 0
            while not stop.is_set():
                number = (number + 97) % (EXPIRED * 3)
                try:
                    if cursor.execute(
                        f"UPDATE t0 SET expires_at = '2037-01-01' WHERE id = {number} AND expires_at < now()"
                    ):
                        renewed.add(number)
                except pymysql.err.OperationalError as error:
                    assert error.args[0] in (1213, 1205), error

    with Lapse(_url(first, database)) as db, Lapse(_url(second, database)) as other:
        _prepare(db)
        renewing = Thread(target=renew)
        renewing.start()
        try:
            runs = [Thread(target=lapse.run, args=("t0",)) for lapse in (db, other)]
            for run in runs:
                run.start()
            for run in runs:
                run.join()
        finally:
            stop.set()
            renewing.join()
        db.run("t0")
        gone = db.execute("SELECT count(*) FROM audit WHERE op = 'D'").rows[0][0]
        assert sum(job.counts.deleted for job in db.history(limit=100)) == gone
        assert len(renewed) > 10
        assert gone == EXPIRED - len(renewed)
    alive = f"SELECT count(*) FROM t0 WHERE id IN ({', '.join(map(str, renewed))})"
    assert _synced(cluster, database, alive) == [[(len(renewed),)]] * 3


def test_two_nodes_make_one_job_and_share_its_claims(cluster: GaleraCluster, database: str) -> None:
    """Row locks end at the node: that one wins and one loses shows at the commit."""
    opened = [Lapse(_url(node, database)) for node in cluster.nodes]
    _prepare(opened[0], batch=1_000)
    failures: list[LapseError] = []
    together = Barrier(len(opened))

    def run(db: Lapse) -> None:
        for number in range(TABLES):
            together.wait(30)
            try:
                db.run(f"t{number}")
            except LapseError as error:
                failures.append(error)

    threads = [Thread(target=run, args=(db,)) for db in opened]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jobs = opened[0].history(limit=100)
    for db in opened:
        db.close()
    assert failures == []
    # Whoever came after the end of a job made another, which found nothing.
    assert {job.status for job in jobs} == {JobStatus.FINISHED}
    assert sum(job.counts.deleted for job in jobs) == TABLES * EXPIRED


def test_first_declarations_on_three_nodes_at_once(cluster: GaleraCluster, database: str) -> None:
    """All of them install Lapse's own tables. Who comes second is told to try again, and that helps."""
    for number in range(len(cluster.nodes)):
        cluster.nodes[0].execute(f"CREATE TABLE t{number} (id INT PRIMARY KEY, ts DATETIME)", database=database)
    _synced(cluster, database, "SELECT 1")
    opened = [Lapse(_url(node, database)) for node in cluster.nodes]
    failures: list[LapseError] = []
    together = Barrier(len(opened))

    def declare(number: int) -> None:
        together.wait(30)
        for _ in range(50):
            try:
                opened[number].execute(f"ALTER TABLE t{number} TTL = ts + INTERVAL 1 DAY")
                return
            except Retryable:
                sleep(0.1)
            except LapseError as error:
                failures.append(error)
                return

    threads = [Thread(target=declare, args=(number,)) for number in range(len(opened))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _synced(cluster, database, "SELECT 1")
    declared = [len(db.policies()) for db in opened]
    for db in opened:
        db.close()
    assert (failures, declared) == ([], [3, 3, 3])


def test_the_second_commit_of_two_nodes_is_retryable(cluster: GaleraCluster, database: str) -> None:
    first, second, _ = cluster.nodes
    with Lapse(_url(first, database)) as one, Lapse(_url(second, database)) as two:
        one.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
        one.execute("INSERT INTO t VALUES (1, 0)")
        _wait_until(lambda: second.execute("SELECT count(*) FROM t", database=database) == [(1,)], "no replication")
        with pytest.raises(Retryable), two.engine.transaction() as later:
            later.exec_driver_sql("UPDATE t SET n = n + 1")
            with one.engine.transaction() as earlier:
                earlier.exec_driver_sql("UPDATE t SET n = n + 10")
        assert _synced(cluster, database, "SELECT n FROM t") == [[(10,)]] * 3


def test_flow_control_is_a_gate(cluster: GaleraCluster, database: str) -> None:
    """A node that cannot keep up holds up every writer of the cluster; a job then waits until it has caught up."""
    first, _, third = cluster.nodes
    with Lapse(_url(first, database)) as db:
        _prepare(db)
        controller = Controller(db.catalog)
        controller.run_once()
        assert controller.stop_reason() is None
        done: list[object] = []
        run = Thread(target=lambda: done.append(db.run("t0")))
        with third.connect() as slow, slow.cursor() as cursor:
            run.start()
            _wait_until(lambda: _deleted(db) > 0, "the job did not begin")
            cursor.execute(f"LOCK TABLES {database}.t0 READ")
            _wait_until(lambda: _is_stopped(controller), "flow control was not seen", 20)
            assert str(controller.stop_reason()).startswith("gate: galera flow control")
            sleep(1.0)
            cursor.execute("UNLOCK TABLES")
        run.join(60)
        (job,) = db.history("t0")
        assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, EXPIRED)
        # It rests after a commit that was held up, or stops at the gate: as it comes.
        assert job.summary is not None and sum(job.summary.waits.values()) > 1


def _is_stopped(controller: Controller) -> bool:
    controller.run_once()
    sleep(0.1)
    return controller.stop_reason() is not None


class _Storm(MariadbBackend):
    """What the chaos driver needs: the first node is the one that has all the bad luck."""

    def __init__(self, cluster: GaleraCluster) -> None:
        self.cluster = cluster
        self.server = cluster.nodes[1]

    def restart(self) -> None:
        self.cluster.nodes[0].kill()
        self.cluster.nodes[0].start()


def test_a_storm(cluster: GaleraCluster, database: str) -> None:
    first, second, third = (_url(node, database) for node in cluster.nodes)
    chaos = Chaos(_Storm(cluster), third, STORM, worker_urls=(first, first, second, third))
    books: Books = chaos.run()
    print(chaos.actions, books)
    assert books.stuck == []
    assert (books.too_early, books.expired_left) == (0, 0)
    assert books.left == books.inserted - books.by_clients - books.by_ttl
    assert books.counted == books.by_ttl > 100
    sums = "SELECT count(*), sum(id) FROM t0"
    one, two, three = _synced(cluster, database, sums)
    assert one == two == three
