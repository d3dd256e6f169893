"""The facade: one database, and everything that can be done to its policies."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from lapse.app.frontend import Frontend, Parameters
from lapse.app.observer import Observer
from lapse.app.result import Result
from lapse.app.session import Session
from lapse.catalog import jobs as stored_jobs
from lapse.catalog import meta, policies, settings
from lapse.catalog.policies import StoredPolicy
from lapse.clock import Clock
from lapse.ddl.names import parse_table_name
from lapse.engines import open_engine
from lapse.engines.base import BoundPolicy
from lapse.errors import (
    CatalogMissing,
    DatabaseUnavailable,
    InvalidValue,
    LapseError,
    NotFound,
    NotPermitted,
    Unsupported,
)
from lapse.model import interval
from lapse.model import settings as setting_model
from lapse.model.hold import Hold
from lapse.model.job import Job
from lapse.model.ledger import ChainVerdict, Head, LedgerEntry
from lapse.model.statement import JobAction
from lapse.model.table import TableName

if TYPE_CHECKING:
    from lapse.app import policyfile
    from lapse.app.archiving import ArchivedJob
    from lapse.app.background import Background
    from lapse.app.candidate import Candidate
    from lapse.app.control import Control
    from lapse.app.doctor import Finding
    from lapse.app.forecast import Forecast
    from lapse.app.ledger import LedgerReader
    from lapse.app.ledger_keys import KeyHistory
    from lapse.app.notifying import Notifier
    from lapse.app.policyfile import Plan, PolicyFile, Problem
    from lapse.app.preview import Preview
    from lapse.app.receivers import Receiver
    from lapse.app.requests import RequestService
    from lapse.metrics import Metrics
    from lapse.runner.events import Listener
    from lapse.runner.jobs import JobKeeper
    from lapse.runner.restoring import Progress, Restored
    from lapse.runner.service import Service
    from lapse.runner.worker import RunResult, Worker

PACE_JOBS = 50
"""The pace of a table is that of its last jobs, of at most this many."""

LEDGER_LIMIT = 50
FIRST_RUNS_TOLD = 50
"""More tables than this are not looked at again after they were declared together: the plan has told what it knows."""

log = logging.getLogger(__name__)


class Lapse(Observer):
    """One database. Opens connections as it needs them; `close` gives them back.

    with lapse.open("sqlite:///app.db") as db:
        db.execute("ALTER TABLE events SET (ttl_expire_after = '30 days')")
        print(db.run().deleted)
    """

    def __init__(
        self, url: str, *, clock: Clock | None = None, must_exist: bool = False, gate_sql: str | None = None
    ) -> None:
        """`must_exist` refuses a URL behind which there is no database yet, where the engine would create one.

        `gate_sql` is a query that gives one number: while that is more than zero, or the query fails, workers that are
        started here delete nothing.
        """
        self._is_entered = False
        super().__init__(open_engine(url, clock), gate_sql=gate_sql)
        if must_exist and not self.engine.exists():
            raise DatabaseUnavailable(f"there is no database at {self.url}", hint="`lapse sql` creates one")
        self.frontend = Frontend(self.catalog, lambda: self._keeper)

    @cached_property
    def _keeper(self) -> JobKeeper:
        from lapse.runner.events import NullListener
        from lapse.runner.jobs import JobKeeper

        return JobKeeper(self.catalog, "frontend", NullListener())

    @cached_property
    def _control(self) -> Control:
        from lapse.app.control import Control

        return Control(self.catalog, self._keeper)

    @cached_property
    def _ledger(self) -> LedgerReader:
        from lapse.app.ledger import LedgerReader

        return LedgerReader(self.catalog)

    def __enter__(self) -> Lapse:
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()

    @property
    def url(self) -> str:
        """Where the database is, without its password."""
        return self.engine.database.url.render_as_string(hide_password=True)

    # SQL

    def session(self) -> Session:
        """A connection of its own, for statements that belong together; close it."""
        return Session(self.engine, self.frontend)

    def execute(self, sql: str, parameters: Parameters = None) -> Result:
        """Run one or more statements, TTL ones included; returns the result of the last."""
        result = Result(rowcount=0)
        notices: tuple[str, ...] = ()
        for result in self.script(sql, parameters):
            notices += result.notices
        return Result(columns=result.columns, rows=result.rows, rowcount=result.rowcount, notices=notices)

    def script(self, sql: str, parameters: Parameters = None) -> Iterator[Result]:
        """Run statements one by one on one connection; each commits by itself unless the text says BEGIN."""
        with self.session() as session:
            for statement in session.parse(sql):
                yield session.execute(statement, parameters)

    # Looking into tables

    def policy(self, table: str) -> StoredPolicy:
        """Raises NotFound for a table without one."""
        return self._stored(table)

    def history(self, table: str | StoredPolicy | None = None, *, limit: int = 50) -> list[Job]:
        """Jobs that are active or have ended, newest first."""
        stored = None if table is None else self._stored(table)
        with self.observe() as seen:
            return seen.history(stored, limit=limit)

    def preview(
        self,
        table: str | StoredPolicy,
        *,
        exact: bool = False,
        ttl: str | None = None,
        column: str | None = None,
        after: str | None = None,
        expression: str | None = None,
        time_zone: str | None = None,
    ) -> list[Preview]:
        """What a run would do, one for each physical table; nothing is changed.

        `column` and `after`, `after` alone (a managed column) or an `expression` try a policy on any table, whether it
        has one or not, and whether or not the database has a catalog. A large table is not scanned unless `exact`.
        `ttl` asks for the forecast of another TTL than the policy's, such as '14 days'; beside `column` it is `after`.
        """
        from lapse.app.candidate import Candidate
        from lapse.app.pace import pace_of
        from lapse.app.preview import preview

        wanted = Candidate.read(column=column, after=after, ttl=ttl, expression=expression, time_zone=time_zone)
        if wanted is not None:
            return self._try(table, wanted, exact=exact)
        try:
            stored = self._stored(table)
        except (NotFound, CatalogMissing) as error:
            assert isinstance(table, str)
            if ttl is None:
                raise self._without_policy(table, error) from None
            return self._try(table, Candidate(after=interval.parse(ttl, name="ttl")), exact=exact)
        other = None if ttl is None else interval.parse(ttl, name="ttl")
        self._keeper.look_again()
        with self.catalog.reading() as connection:
            pace = pace_of(stored.policy, stored_jobs.recent_jobs(connection, limit=PACE_JOBS, name=stored.table))
            return [
                preview(
                    self.engine,
                    connection,
                    declared,
                    exact=exact,
                    pace=pace,
                    ttl=other,
                    grace_until=stored.grace_until,
                )
                for declared in self._declared(connection, stored)
            ]

    def _try(self, table: str | StoredPolicy, wanted: Candidate, *, exact: bool) -> list[Preview]:
        from lapse.app import candidate
        from lapse.app.nearby import suggesting_tables

        with self.engine.connection() as connection:
            name = table.table if isinstance(table, StoredPolicy) else parse_table_name(table, self.engine.dialect)
            with suggesting_tables(self.engine, connection, name):
                found = self.engine.describe(connection, name)
            known: list[StoredPolicy] = []
            # A role that may read the table and not the catalog can try a policy all the same.
            with suppress(NotPermitted):
                known = self._policies_if_any()
            stored = next((stored for stored in known if stored.table == found.name), None)
            return candidate.previews(
                self.engine,
                connection,
                found,
                wanted,
                present=stored.policy if stored else None,
                others={each.table for each in known} - {found.name},
                holds=stored.holds if stored else (),
                exact=exact,
            )

    def _without_policy(self, table: str, error: LapseError) -> LapseError:
        """What is wrong with a table that has no policy: perhaps there is no such table, or a comment proposes one."""
        from lapse.app import candidate
        from lapse.app.control import WHICH_HAVE

        if isinstance(error, NotFound) and error.hint != WHICH_HAVE:
            return error
        with self.engine.connection() as connection:
            name = self.engine.full_name(connection, parse_table_name(table, self.engine.dialect))
        return candidate.no_policy(name)

    def forecast(
        self, table: str | StoredPolicy, *, days: int = 30, ttl: str | None = None, exact: bool = False
    ) -> Forecast:
        """Rows and bytes that expire on each of the coming days, and the size the table settles at."""
        from lapse.app.forecast import Forecaster

        if days < 1:
            raise InvalidValue("days", days, "must be at least 1")
        stored = self._stored(table)
        wanted = None if ttl is None else interval.parse(ttl, name="ttl")
        with self.catalog.reading() as connection:
            declared = self._declared(connection, stored)
            return Forecaster(self.engine, declared, days=days, ttl=wanted).look(connection, exact=exact)[0]

    def _declared(self, connection: Connection, stored: StoredPolicy) -> list[BoundPolicy]:
        parts = policies.list_tables(connection, stored.id)
        return [self._keeper.declared(connection, stored, part.name_in(stored.table)) for part in parts]

    def metrics(self) -> Metrics:
        """Counters for a worker to feed, and the state in the catalog, on one registry for Prometheus."""
        from lapse.app.collector import CatalogCollector
        from lapse.metrics import Metrics

        found = Metrics()
        found.registry.register(CatalogCollector(self))
        return found

    def doctor(self, *, repair: bool = False) -> list[Finding]:
        from lapse.app.doctor import Doctor

        return Doctor(self).examine(repair=repair)

    # Doing

    def run(
        self,
        table: str | None = None,
        *,
        listener: Listener | None = None,
        confirm: bool = False,
        worker: Worker | None = None,
    ) -> RunResult:
        """Run what is due, or `table` now, and return when it is done.

        `confirm` lets first runs pass that would be held because they look like a mistake. `worker` is one that
        `worker()` made, so that another thread can stop it.
        """
        worker = worker or self.worker(listener)
        self._do_what_was_asked()
        only = None if table is None else self._stored(table)
        if confirm:
            # The run itself reads them, too, but what they declare is to be confirmed before it.
            worker.read_comments()
            self.confirm(only)
        return worker.run(only)

    def _do_what_was_asked(self) -> None:
        """From the database's own client: a run from cron is a worker, too."""
        if not self.engine.features.client_requests:
            return
        try:
            self._requests().run_once()
        except (CatalogMissing, NotPermitted) as error:
            log.debug("requests: %s", error.message)

    def worker(self, listener: Listener | None = None, *, receivers: Sequence[Receiver] = ()) -> Worker:
        """What this object shows of the server's gauges is from then on what that worker goes by.

        `receivers` are told what needs a person while the worker serves.
        """
        from lapse.runner.worker import Worker

        services: list[Service] = [self.notifier(receivers)] if receivers else []
        if self.engine.features.client_requests:
            services.append(self._requests())
        worker = Worker(self.catalog, listener, gate_sql=self._gate_sql, services=services)
        self._controller = worker.controller
        return worker

    def _requests(self) -> RequestService:
        from lapse.app.requests import RequestService

        return RequestService(self.catalog, self._control, self.preview)

    def notifier(self, receivers: Sequence[Receiver]) -> Notifier:
        """Tells `receivers` what needs a person; `run_once` does so once."""
        from lapse.app.notifying import Notifier

        place = self.engine.database.url
        database = f"{place.database or 'sqlite'}" + (f" on {place.host}" if place.host else "")
        return Notifier(self.catalog, receivers, database)

    def background(
        self,
        listener: Listener | None = None,
        *,
        notify_url: str | None = None,
        notify_secret: str | None = None,
    ) -> Background:
        """A worker in threads of this process: `with lapse.open(url).background(): …`, or `.start()` and `.stop()`.

        What it does is logged by the logger `lapse.worker`, or told to `listener`. `notify_url` is a webhook that is
        told what needs a person, signed with `notify_secret`. When it stops it closes this object's connections, unless
        this object was opened by a `with` of its own.
        """
        from lapse.app.background import Background
        from lapse.app.receivers import Webhook
        from lapse.runner.joblog import JobLog

        receivers = [Webhook(notify_url, notify_secret)] if notify_url else []
        return Background(self.worker(listener or JobLog(), receivers=receivers), self._close_unless_entered)

    def _close_unless_entered(self) -> None:
        if not self._is_entered:
            self.close()

    def accept(self, table: str) -> tuple[str, ...]:
        """Make what the comment of a table proposes its policy; returns notices. Raises NotFound, NotPermitted."""
        return self._control.accept(table)

    def confirm(self, table: str | StoredPolicy | None = None) -> None:
        """Let the first run of a table, or of all, pass, however many rows it deletes."""
        self._control.confirm(self.policies() if table is None else [self._stored(table)])

    def request_run(self, table: str | StoredPolicy) -> StoredPolicy:
        """Make a table due now; the next worker that looks starts its job."""
        stored = self._stored(table)
        self._control.request_run(stored)
        return stored

    def pause(self, table: str | StoredPolicy) -> None:
        self._control.pause(self._stored(table))

    def resume(self, table: str | StoredPolicy) -> None:
        """Go on with a table that was paused, or whose first run waits for confirmation."""
        self._control.resume(self._stored(table))

    def hold(
        self, table: str, where: str | None = None, *, until: datetime | None = None, reason: str | None = None
    ) -> Hold:
        """Keep rows of a table, expired or not: those for which `where` is true, or all, until then or `release`.

        When this returns, no job deletes one of them any more. `where` is written as `ttl_filter` is.
        """
        return self._control.hold(table, where=where, until=until, reason=reason)

    def release(self, hold_id: int) -> Hold:
        """End a hold: what has expired goes with the next job."""
        return self._control.release(hold_id)

    def holds(self, *, ended: bool = False) -> list[Hold]:
        """Those that keep rows now; `ended` lists all that there ever were."""
        return self._control.holds() if ended else self._control.holds_on()

    def ledger(
        self, table: str | None = None, *, limit: int = LEDGER_LIMIT, before: int | None = None
    ) -> list[LedgerEntry]:
        """What was done, newest first: to one table, or to all and to settings. `before` is the id of an entry."""
        return self._ledger.entries(table, limit=limit, before=before)

    def verify_ledger(self, *heads: Head) -> ChainVerdict:
        """Is every entry what it was when it was written? `heads` are some that were noted outside of the database."""
        return self._ledger.verify(heads)

    def ledger_head(self) -> Head | None:
        """The newest entry of the chain, to be noted outside of the database."""
        return self._ledger.head()

    def deleted(self, table: str, *key: object) -> KeyHistory:
        """When rows with this primary key were deleted, and by which jobs, where the policy has `ttl_ledger_keys`.

        A key of several columns is given in their order."""
        from lapse.app.ledger_keys import KeyReader

        return KeyReader(self.catalog).history(table, [str(each) for each in key])

    def certificate(self, table: str | None = None, *, since: datetime, until: datetime) -> dict[str, Any]:
        """What was promised, deleted and held in that time, and what is left now: the statement, to be signed."""
        from lapse.app.certificate import Certifier

        return Certifier(self.catalog, self._keeper).statement(table, since=since, until=until)

    # Archives

    def archive(self, table: str | StoredPolicy | None = None, *, verify: bool = False) -> list[ArchivedJob]:
        """What is in the archives, or in that of one table, by the jobs that have moved rows there. To `verify`, every
        file is read and compared with what was recorded of it."""
        from lapse.app.archiving import archived

        name = table.table if isinstance(table, StoredPolicy) else None if table is None else self._full_name(table)
        return archived(self.catalog, name, verify=verify)

    def restore(
        self,
        table: str,
        *,
        job: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        where: str | None = None,
        into: str | None = None,
        keep: str | None = None,
        ignore_missing_columns: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Restored:
        """Put archived rows back: those of one job, archived from `since` until before `until`, for which `where` is
        true. Rows whose key is in the table are left alone.

        Before the first row comes back a hold is placed that lasts for `keep` ('7 days'; '0 seconds' places none);
        rows with a managed column get a new expiry instead. `into` names another table with the same columns.
        """
        from lapse.runner.restoring import DEFAULT_KEEP, Restorer, Wanted

        wanted = Wanted(
            job=job,
            since=since,
            until=until,
            where=where,
            into=None if into is None else self._full_name(into),
            keep=DEFAULT_KEEP if keep is None else interval.parse(keep, name="keep"),
            ignore_missing_columns=ignore_missing_columns,
        )
        name, restorer = self._full_name(table), Restorer(self.catalog, self._gate_sql)
        return restorer.look(name, wanted) if dry_run else restorer.restore(name, wanted, progress)

    def undo(
        self, job: int, *, keep: str | None = None, dry_run: bool = False, progress: Progress | None = None
    ) -> Restored:
        """Restore everything that one job has archived. Raises NotFound where it archived nothing."""
        from lapse.runner.restoring import DEFAULT_KEEP, Restorer, Wanted

        with self.catalog.reading() as connection:
            found = stored_jobs.get_job(connection, job)
            stored = policies.get_policy(connection, found.policy_id)
        name, restorer = found.table.whole if stored is None else stored.table, Restorer(self.catalog, self._gate_sql)
        wanted = Wanted(job=job, keep=DEFAULT_KEEP if keep is None else interval.parse(keep, name="keep"))
        return restorer.look(name, wanted) if dry_run else restorer.restore(name, wanted, progress)

    def _full_name(self, table: str) -> TableName:
        from lapse.app.nearby import suggesting_tables

        with self.engine.connection() as connection:
            name = parse_table_name(table, self.engine.dialect)
            with suggesting_tables(self.engine, connection, name):
                return self.engine.full_name(connection, name)

    def cancel(self, table: str | StoredPolicy) -> list[Job]:
        """Cancel the active jobs of a table."""
        stored = self._stored(table)
        return [self.control(job.id, JobAction.CANCEL) for job in self.jobs() if job.policy_id == stored.id]

    def control(self, job_id: int, action: JobAction) -> Job:
        """Ask for one job to pause, go on or be cancelled."""
        return self._control.control(job_id, action)

    # Policies as code

    def plan(self, file: PolicyFile, *, prune: bool = False) -> Plan:
        """What has to change for the database to have the policies of a file; changes nothing."""
        from lapse.app.policyfile import Planner

        return Planner(self.catalog).plan(file, prune=prune)

    def apply(self, plan: Plan) -> tuple[str, ...]:
        """Do what a plan says, one change after the other; returns notices."""
        from lapse.app.firstrun import FirstRun
        from lapse.app.policyfile import Planner

        planner, first_run = Planner(self.catalog), FirstRun(self.catalog)
        notices = [notice for change in plan.changes for notice in planner.apply(change)]
        declared = [change for change in plan.changes if change.after is not None]
        for change in declared[:FIRST_RUNS_TOLD]:
            notices += first_run.notices(change.table, change.before)
        if len(declared) > FIRST_RUNS_TOLD:
            more = len(declared) - FIRST_RUNS_TOLD
            notices.append(f"what the first run deletes of {more:,} more tables is told by `lapse preview URL TABLE`")
        return tuple(notices)

    def candidates(self) -> list[policyfile.SuggestedPolicy]:
        """Tables without a policy, with what their columns suggest."""
        from lapse.app.policyfile import find_candidate

        known = {stored.table for stored in self._policies_if_any()}
        with self.engine.connection() as connection:
            names = [name for name in self.engine.tables(connection) if name not in known]
            return [find_candidate(self.engine, connection, name) for name in names]

    def draft(self) -> str:
        """A first `lapse.toml`: the policies there are, and proposals for other tables, commented out."""
        from lapse.app.policyfile import write_file

        return write_file(self._policies_if_any(), self.candidates())

    def lint(self, file: PolicyFile) -> list[Problem]:
        """Tables without a word about them in the file, and entries without a table."""
        from lapse.app.policyfile import lint

        with self.engine.connection() as connection:
            return lint(self.engine, connection, file)

    def _policies_if_any(self) -> list[StoredPolicy]:
        with self.engine.connection() as connection:
            bound = self.catalog.bind(connection)
            return policies.list_policies(bound) if self.catalog.is_installed(bound) else []

    # Settings

    def settings(self) -> dict[str, str]:
        """Every setting with its text, defaults included."""
        with self.engine.connection() as connection:
            bound = self.catalog.bind(connection)
            stored = settings.stored_texts(bound) if self.catalog.is_installed(bound) else {}
        return {name: stored.get(name, setting.default) for name, setting in setting_model.SETTINGS.items()}

    def set_setting(self, name: str, value: str) -> tuple[str, str]:
        setting_model.normalise(name, value)
        if self.engine.has_setting(name):
            raise Unsupported(
                f"{name} is a variable of TiDB's own, which obeys it, and no setting of Lapse's here",
                hint=f"lapse sql -c \"SET GLOBAL {name} = '{value}'\"",
            )
        with self.catalog.writing() as connection:
            return settings.save_setting(connection, name, value, self.engine.now(connection))

    def reset_setting(self, name: str) -> tuple[str, str]:
        with self.catalog.writing() as connection:
            name = settings.reset_setting(connection, name, self.engine.now(connection))
        return name, setting_model.find(name).default

    def confirm_clock(self) -> bool:
        """Trust the database's clock again after it jumped ahead; False if it was trusted."""
        with self.catalog.writing() as connection:
            ahead = str((self.engine.stopwatch(connection) - datetime.now(UTC)).total_seconds())
            meta.replace_fact(connection, meta.CLOCK_AHEAD, meta.read_fact(connection, meta.CLOCK_AHEAD), ahead)
            return settings.trust_clock(connection, self.engine.now(connection))

    def _stored(self, table: str | StoredPolicy) -> StoredPolicy:
        return table if isinstance(table, StoredPolicy) else self._control.stored(table)
