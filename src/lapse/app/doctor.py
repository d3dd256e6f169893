"""Looks for what is wrong, or could be better, and mends what can be mended."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy import Connection

from lapse.app.checkup import check_up
from lapse.app.finding import Finding, Level
from lapse.app.plausibility import implausible_times
from lapse.app.status import why_disarmed
from lapse.catalog import Catalog, jobs, policies
from lapse.catalog.policies import StoredPolicy
from lapse.engines.base import Declared
from lapse.errors import (
    DatabaseError,
    DatabaseUnavailable,
    Drift,
    LapseError,
    Refused,
    Retryable,
    TableNotFound,
)
from lapse.model.policy import PolicyChange
from lapse.runner import declared as declaring
from lapse.runner.comments import CommentProblem, CommentReader
from lapse.runner.declarer import Declarer
from lapse.runner.identity import DISARMED

RATE_DAYS = 7
"""The rate of deleting is the average of so many days."""


class Doctor:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._declarer = Declarer(catalog)

    def examine(self, *, repair: bool) -> list[Finding]:
        findings = [
            Finding(level=Level.PROBLEM, subject=str(each.table), text=each.reason, fix=self._grants_for(each))
            for each in CommentReader(self._catalog).run_once()
        ]
        findings += check_up(self._catalog)
        with self._catalog.reading() as connection:
            known = policies.list_policies(connection)
        for stored in known:
            try:
                found = list(self._examine_policy(stored, repair=repair))
            except (Retryable, DatabaseUnavailable):
                raise
            except DatabaseError as error:
                # Often a privilege that this role lacks; the others are looked at all the same.
                found = [Finding(level=Level.PROBLEM, subject=str(stored.table), text=error.message, fix=error.hint)]
            if all(finding.level is Level.OK for finding in found):
                found.insert(0, Finding(level=Level.OK, subject=str(stored.table), text="in order"))
            findings += found
        return findings

    def _grants_for(self, problem: CommentProblem) -> str | None:
        """What this role lacks for doing what a comment asks for; None where it lacks nothing."""
        if problem.policy is None:
            return None
        try:
            with self._engine.connection() as connection:
                table = self._engine.describe(connection, problem.table)
                lacking = self._engine.privileges(connection, Declared(table=table, policy=problem.policy))
        except DatabaseError as error:
            return error.hint
        return " ".join(advice.statement for advice in lacking if advice.statement) or None

    def _examine_policy(self, stored: StoredPolicy, *, repair: bool) -> Iterator[Finding]:
        with self._engine.connection() as connection:
            gone = self._table_gone(connection, stored)
            if gone is None:
                try:
                    declared = declaring.load(self._engine, connection, stored)
                    yield from self._examine_table(connection, stored, declared, repair=repair)
                except (Drift, Refused) as error:
                    yield Finding(
                        level=Level.PROBLEM,
                        subject=str(stored.table),
                        text=error.message,
                        fix=f"ALTER TABLE {stored.table} RESET (ttl), or declare the policy anew",
                    )
        if gone is not None:
            yield self._forget(stored, gone, repair=repair)

    def _table_gone(self, connection: Connection, stored: StoredPolicy) -> str | None:
        try:
            self._engine.describe(connection, stored.table)
        except TableNotFound:
            return f"table {stored.table} does not exist any more, but its policy does"
        return None

    def _forget(self, stored: StoredPolicy, text: str, *, repair: bool) -> Finding:
        if repair:
            with self._catalog.writing() as connection:
                self._engine.dropped(connection, stored.table)
                self._declarer.forget(connection, stored, "the table was dropped")
        return Finding(
            level=Level.PROBLEM, subject=str(stored.table), text=text, fix="lapse doctor --repair", mended=repair
        )

    def _examine_table(
        self, connection: Connection, stored: StoredPolicy, declared: Declared, *, repair: bool
    ) -> Iterator[Finding]:
        subject = str(stored.table)
        missing = self._engine.missing_parts(connection, declared)
        if missing:
            yield self._reinstall(stored, declared, missing, repair=repair)
            if not repair:
                return
        if declaring.fingerprint(declared) != stored.fingerprint:
            yield self._accept_shape(stored, declared, repair=repair)
        if any(part.trouble == DISARMED for part in policies.list_tables(self._catalog.bind(connection), stored.id)):
            yield self._arm(stored, repair=repair)
        lacking = self._engine.privileges(connection, declared)
        yield from (Finding(level=Level.PROBLEM, subject=subject, text=a.text, fix=a.statement) for a in lacking)
        if lacking:
            return
        self._engine.check(connection, declared, stored.policy)
        rate = self._deleted_per_day(connection, stored)
        for advice in (
            *self._engine.advice(connection, declared),
            *self._engine.upkeep(connection, declared, rate),
        ):
            yield Finding(level=Level.ADVICE, subject=subject, text=advice.text, fix=advice.statement)
        yield from implausible_times(self._engine, connection, declared)
        for text in self._engine.space(connection, declared):
            yield Finding(level=Level.OK, subject=subject, text=text)

    def _deleted_per_day(self, connection: Connection, stored: StoredPolicy) -> float:
        since = self._engine.now(connection) - timedelta(days=RATE_DAYS)
        days = jobs.deleted_per_day(self._catalog.bind(connection), since=since).get(stored.id, {})
        return sum(days.values()) / RATE_DAYS

    def _arm(self, stored: StoredPolicy, *, repair: bool) -> Finding:
        if repair:
            with self._catalog.writing() as connection:
                self._declarer.change(connection, stored.table, PolicyChange(set={"pause": False}), stored.source)
        return Finding(
            level=Level.PROBLEM,
            subject=str(stored.table),
            text=why_disarmed(self._engine),
            fix=f"lapse resume URL {stored.table}",
            mended=repair,
        )

    def _reinstall(self, stored: StoredPolicy, declared: Declared, missing: list[str], *, repair: bool) -> Finding:
        text = f"missing in the database: {', '.join(missing)}"
        if repair:
            try:
                with self._engine.transaction() as connection:
                    self._engine.install(connection, declared, stored.policy)
            except LapseError as error:
                return Finding(
                    level=Level.PROBLEM, subject=str(stored.table), text=f"{text}; repair failed: {error.message}"
                )
        return Finding(
            level=Level.PROBLEM, subject=str(stored.table), text=text, fix="lapse doctor --repair", mended=repair
        )

    def _accept_shape(self, stored: StoredPolicy, declared: Declared, *, repair: bool) -> Finding:
        if repair:
            with self._catalog.writing() as connection:
                policies.set_fingerprint(connection, stored.id, declaring.fingerprint(declared))
        return Finding(
            level=Level.PROBLEM,
            subject=str(stored.table),
            text="a column that the policy or the paging depends on was changed behind Lapse's back",
            fix="check that the policy still means what it should, then lapse doctor --repair",
            mended=repair,
        )
