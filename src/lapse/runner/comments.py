"""Policies that live in table comments: any client declares TTL with a comment, workers find it.

A comment is obeyed where the worker's own role owns the table, where a setting trusts its owner, and where the engine
obeys it by itself. Any other is a proposal, which changes nothing until a person accepts it. What was obeyed or
accepted is remembered with the comment's text: when the comment says something else, its table gets no jobs until that
is obeyed or accepted in turn. A policy declared by a statement wins over a comment.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from sqlalchemy import Connection

from lapse.catalog import Catalog, meta, policies, settings
from lapse.catalog.policies import StoredPolicy
from lapse.ddl import parse_comment_policy
from lapse.engines.base import TableComment
from lapse.errors import DatabaseUnavailable, LapseError, NotFound, TableNotFound
from lapse.model.policy import Policy, PolicyChange
from lapse.model.settings import Settings
from lapse.model.table import MANAGED_COLUMN, TableName
from lapse.runner.policy_manager import PolicyManager

READ_SECONDS = 60.0
"""A comment is found by running workers this soon."""
FOLLOW_SECONDS = 2.0
"""Time that one round gives to comments; those left over wait for the next."""
BACKOFF_SECONDS = 60.0
MAX_BACKOFF_SECONDS = 3600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommentProblem:
    """A comment that is not obeyed. A `proposal` waits for a person; anything else is a mistake or an obstacle.

    `policy` is what the comment asks for, where it could be understood. `stored` is the policy from an earlier comment,
    which gets no jobs. Of an `untrusted` table's comment a run takes no notice. `advice` is what to do where no comment
    says it, but the database's own TTL.
    """

    table: TableName
    reason: str
    text: str = ""
    policy: Policy | None = None
    proposal: bool = False
    stored: StoredPolicy | None = None
    untrusted: bool = False
    advice: str | None = None

    @property
    def fix(self) -> str | None:
        return f"lapse accept URL {self.table}" if self.proposal else self.advice


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """A comment to follow now."""

    comment: TableComment
    fields: Mapping[str, Any]
    policy: Policy
    stored: StoredPolicy | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CommentLook:
    """What the comments of a database say that is not done yet; `silent` are policies whose comment may be gone."""

    wanted: tuple[_Wanted, ...] = ()
    problems: tuple[CommentProblem, ...] = ()
    silent: tuple[StoredPolicy, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failure:
    text: str
    problem: CommentProblem
    count: int
    until: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """`obeyed` are the policies that comments have declared, `policies` those of the tables that have a comment."""

    comments: Sequence[TableComment]
    obeyed: Sequence[StoredPolicy]
    policies: Mapping[TableName, StoredPolicy]
    settings: Settings
    rejected: frozenset[str]


class CommentReader:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._manager = PolicyManager(catalog)
        self._read_at = float("-inf")
        self._problems: tuple[CommentProblem, ...] = ()
        self._failures: dict[TableName, _Failure] = {}

    def refresh(self) -> tuple[CommentProblem, ...]:
        """Read the comments if they have not been read for a while; returns those that are not obeyed."""
        if monotonic() - self._read_at >= READ_SECONDS:
            self.run_once()
        return self._problems

    def run_once(self) -> tuple[CommentProblem, ...]:
        """Obey what is to be obeyed. What fails for one table is that table's alone: nothing but an unreachable
        database is raised."""
        if not self._engine.features.table_comments:
            return ()
        try:
            with self._engine.connection() as connection:
                look = self.look(connection)
        except DatabaseUnavailable:
            raise
        except LapseError as error:
            log.warning("the comments of tables cannot be read: %s", error.message)
            return self._problems
        started = monotonic()
        problems = list(look.problems)
        later = False
        for wanted in look.wanted:
            if monotonic() - started > FOLLOW_SECONDS:
                later = True
                break
            problems += self._try(wanted)
        for stored in look.silent:
            problems += self._leave(stored)
        self._report(problems)
        self._read_at = float("-inf") if later else monotonic()
        return self._problems

    def look(self, connection: Connection) -> CommentLook:
        """Read and judge every comment, changing nothing, in a fixed number of statements."""
        if not self._engine.features.table_comments:
            return CommentLook()
        known = self._known(connection)
        wanted: list[_Wanted] = []
        problems: list[CommentProblem] = []
        declaring: set[TableName] = set()
        for comment in known.comments:
            judged = self._judge(connection, comment, known)
            if judged is not None:
                declaring.add(comment.table)
            if isinstance(judged, _Wanted):
                wanted.append(judged)
            elif isinstance(judged, CommentProblem):
                problems.append(judged)
        problems += self.undeclared(connection)
        silent = [stored for stored in known.obeyed if stored.table not in declaring]
        return CommentLook(wanted=tuple(wanted), problems=tuple(problems), silent=tuple(silent))

    def undeclared(self, connection: Connection) -> list[CommentProblem]:
        """No comment says it, but the database's own TTL. Where no policy follows it, it is `untrusted`."""
        told: dict[TableName, Policy] = {}

        def declared(names: Sequence[TableName]) -> Mapping[TableName, Policy]:
            bound = self._catalog.bind(connection)
            if names and self._catalog.is_installed(bound):
                told.update({stored.table: stored.policy for stored in policies.policies_named(bound, list(names))})
            return told

        return [
            CommentProblem(table=table, reason=advice.text, advice=advice.statement, untrusted=table not in told)
            for table, advice in self._engine.undeclared(connection, declared).items()
        ]

    def find(self, connection: Connection, name: TableName) -> tuple[TableComment, dict[str, Any]]:
        """The comment of one table and what it declares. Raises NotFound, or what is wrong with it."""
        full = self._engine.full_name(connection, name)
        comment = next((each for each in self._engine.comments(connection) if each.table == full), None)
        fields = None if comment is None else _read(comment)
        if comment is None or fields is None:
            raise NotFound(
                f"the comment of table {full} proposes no policy",
                hint="a comment declares one with ttl_duration=<seconds>;ttl_col=<column>; and nothing but such items",
            )
        return comment, fields

    def _known(self, connection: Connection) -> _Known:
        bound = self._catalog.bind(connection)
        if not self._catalog.is_installed(bound):
            # A comment may be the first policy there is, and then it is what installs the catalog.
            comments, nothing = self._engine.comments(connection), Settings.from_texts({})
            return _Known(comments=comments, obeyed=(), policies={}, settings=nothing, rejected=frozenset())
        self._catalog.require(bound)
        # Read before the comments are: one of these whose comment is not found then has lost it.
        obeyed = policies.policies_from_comments(bound)
        comments = self._engine.comments(connection)
        found = policies.policies_named(bound, [comment.table for comment in comments]) if comments else []
        return _Known(
            comments=comments,
            obeyed=obeyed,
            policies={stored.table: stored for stored in found},
            settings=settings.load_settings(bound),
            rejected=meta.rejections(bound),
        )

    def _judge(
        self, connection: Connection, comment: TableComment, known: _Known
    ) -> _Wanted | CommentProblem | TableComment | None:
        """What is to be done about a comment; the comment itself where that is nothing, None where it declares none."""
        stored = known.policies.get(comment.table)
        if stored is not None and (stored.source != policies.COMMENT or stored.source_text == comment.text):
            return comment
        trusted = comment.is_own or known.settings.trusts(comment.owner)
        try:
            fields = _read(comment)
            if fields is None:
                return None
            if meta.is_rejected(known.rejected, comment.table, comment.text):
                return comment
            policy = PolicyChange(set=fields).apply_to(None, str(comment.table))
        except LapseError as error:
            return CommentProblem(
                table=comment.table,
                text=comment.text,
                reason=f"its comment: {error.message}",
                stored=stored,
                untrusted=not trusted,
            )
        assert policy is not None
        if stored is not None and _says_the_same(stored, fields, policy):
            return comment
        proposal = CommentProblem(
            table=comment.table,
            text=comment.text,
            reason=_why_not_obeyed(comment, stored),
            policy=policy,
            proposal=True,
            stored=stored,
            untrusted=not trusted,
        )
        if not trusted and not self._is_obeyed_anyway(connection, comment, policy):
            return proposal
        if stored is not None and stored.policy.expire_after is not None and policy.expire_after is None:
            return proposal
        return _Wanted(comment=comment, fields=fields, policy=policy, stored=stored)

    def _is_obeyed_anyway(self, connection: Connection, comment: TableComment, policy: Policy) -> bool:
        if comment.native is None:
            return False
        try:
            return self._engine.obeys_by_itself(connection, self._engine.describe(connection, comment.table), policy)
        except TableNotFound:
            return False

    def _try(self, wanted: _Wanted) -> list[CommentProblem]:
        """Follow one comment; one that failed is left alone for a while."""
        comment = wanted.comment
        failed = self._failures.get(comment.table)
        if failed is not None and failed.text != comment.text:
            failed = None
        if failed is not None and monotonic() < failed.until:
            return [failed.problem]
        try:
            with self._catalog.writing() as connection, self._engine.briefly(connection):
                change = PolicyChange(set=wanted.fields, comment=comment.text)
                self._manager.change(connection, comment.table, change)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            if not isinstance(error, LapseError):
                log.exception("table %s: its comment cannot be followed", comment.table)
            reason = error.message if isinstance(error, LapseError) else f"{type(error).__name__}: {error}"
            problem = CommentProblem(
                table=comment.table,
                text=comment.text,
                reason=f"its comment: {reason}",
                policy=wanted.policy,
                stored=wanted.stored,
            )
            count = 0 if failed is None else failed.count + 1
            pause = min(BACKOFF_SECONDS * 2.0 ** min(count, 10), MAX_BACKOFF_SECONDS)
            until = monotonic() + pause
            self._failures[comment.table] = _Failure(text=comment.text, problem=problem, count=count, until=until)
            return [problem]
        self._failures.pop(comment.table, None)
        return []

    def _leave(self, stored: StoredPolicy) -> list[CommentProblem]:
        """A policy goes with its comment, unless that would take a column, and what rows say in it, away."""
        try:
            with self._engine.connection() as connection:
                self._engine.describe(connection, stored.table)
            if stored.policy.expire_after is None:
                with self._catalog.writing() as connection, self._engine.briefly(connection):
                    self._manager.remove(connection, stored)
                return []
            reason = "its comment declares nothing any more"
            hint = f"ALTER TABLE {stored.table} RESET (ttl) removes the policy, with the column {MANAGED_COLUMN}"
            return [CommentProblem(table=stored.table, reason=f"{reason}; {hint}", stored=stored)]
        except DatabaseUnavailable:
            raise
        except TableNotFound:
            # Gone, or out of this role's sight: its job says so.
            return []
        except LapseError as error:
            return [CommentProblem(table=stored.table, reason=f"its comment is gone: {error.message}", stored=stored)]

    def _report(self, problems: list[CommentProblem]) -> None:
        for problem in problems:
            if problem not in self._problems:
                log.warning("table %s: %s", problem.table, problem.reason)
                self._stop(problem)
        self._problems = tuple(problems)

    def _stop(self, problem: CommentProblem) -> None:
        """A job that is running goes by what the comment said before."""
        if problem.stored is None:
            return
        try:
            with self._catalog.writing() as connection:
                self._manager.end_jobs(connection, problem.stored, problem.reason)
        except DatabaseUnavailable:
            raise
        except LapseError as error:
            log.warning("the jobs of table %s cannot be ended: %s", problem.table, error.message)


def _read(comment: TableComment) -> dict[str, Any] | None:
    """An engine that obeys comments reads its own words out of any text."""
    fields = parse_comment_policy(comment.text)
    return parse_comment_policy(comment.native) if fields is None and comment.native else fields


def _says_the_same(stored: StoredPolicy, fields: Mapping[str, Any], policy: Policy) -> bool:
    if stored.source_text is None:
        # Stored by a version of Lapse that did not remember the text.
        return PolicyChange(set={"pause": policy.pause}).apply_to(stored.policy, "") == policy
    try:
        return parse_comment_policy(stored.source_text) == fields
    except LapseError:
        return False


def _why_not_obeyed(comment: TableComment, stored: StoredPolicy | None) -> str:
    if stored is not None:
        reason = "its comment says something else than the one that was accepted"
        if stored.policy.expire_after is not None:
            reason += f"; accepting it may drop the column {MANAGED_COLUMN}"
        return reason
    owner = "" if comment.owner is None else f" of {comment.owner}"
    return f"its comment proposes a policy, and comments on tables{owner} are not obeyed"
