"""Policies that live in table comments: any client declares TTL with a comment, workers find it.

A policy declared by a statement wins over a comment. What a comment says is followed when it changes, and removed
when the comment goes; a comment that cannot be understood stops the jobs of its table and is reported.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from time import monotonic

from lapse.catalog import Catalog, policies
from lapse.catalog.policies import StoredPolicy
from lapse.ddl import parse_comment_policy
from lapse.errors import DatabaseUnavailable, LapseError, Retryable
from lapse.model.policy import Policy, PolicyChange
from lapse.model.table import TableName
from lapse.runner.declarer import Declarer

READ_SECONDS = 60.0
"""A comment is found by running workers this soon."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommentProblem:
    """`policy` is what the comment asks for, where that could be understood."""

    table: TableName
    reason: str
    policy: Policy | None = None


class CommentReader:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._declarer = Declarer(catalog)
        self._read_at = float("-inf")
        self._problems: tuple[CommentProblem, ...] = ()

    def refresh(self) -> tuple[CommentProblem, ...]:
        """Read the comments if they have not been read for a while; returns what is wrong with them."""
        if monotonic() - self._read_at >= READ_SECONDS:
            self.run_once()
        return self._problems

    def run_once(self) -> tuple[CommentProblem, ...]:
        if not self._engine.features.table_comments:
            return ()
        with self._engine.connection() as connection:
            found = dict(self._engine.comments(connection))
            # A comment may be the first policy there is, and then it is what installs the catalog.
            bound = self._catalog.bind(connection)
            known = policies.list_policies(bound) if self._catalog.is_installed(connection) else []
        stored = {each.table: each for each in known}
        problems: list[CommentProblem] = []
        declared: set[TableName] = set()
        for name, text in found.items():
            wanted: Policy | None = None
            try:
                fields = parse_comment_policy(text)
                if fields is None:
                    continue
                declared.add(name)
                wanted = PolicyChange(set=fields).apply_to(None, str(name))
                assert wanted is not None
                self._follow(name, wanted, stored.get(name), keep_pause="pause" not in fields)
            except (Retryable, DatabaseUnavailable):
                raise
            except LapseError as error:
                declared.add(name)
                problems.append(CommentProblem(table=name, reason=f"its comment: {error.message}", policy=wanted))
        for each in stored.values():
            if each.source == policies.COMMENT and each.table not in declared:
                self._remove(each)
        self._report(problems)
        self._read_at = monotonic()
        return self._problems

    def _follow(self, name: TableName, wanted: Policy, stored: StoredPolicy | None, *, keep_pause: bool) -> None:
        if stored is not None and stored.source != policies.COMMENT:
            return
        if stored is not None and keep_pause:
            wanted = replace(wanted, pause=stored.policy.pause)
        if stored is None or stored.policy != wanted:
            with self._catalog.writing() as connection:
                self._declarer.put(connection, name, wanted, policies.COMMENT)

    def _remove(self, stored: StoredPolicy) -> None:
        with self._catalog.writing() as connection:
            self._declarer.remove(connection, stored)

    def _report(self, problems: list[CommentProblem]) -> None:
        for problem in problems:
            if problem not in self._problems:
                log.warning("table %s: %s", problem.table, problem.reason)
        self._problems = tuple(problems)
