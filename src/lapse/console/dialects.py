"""A policy as SQL, in the words of every system that has some."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.catalog.policies import StoredPolicy
from lapse.ddl.render import render
from lapse.errors import LapseError

TITLES = {"lapse": "Lapse", "cockroach": "CockroachDB", "tidb": "TiDB", "myrocks": "MyRocks"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """`sql` is None where the dialect has no words for the policy; `why_not` says what is missing."""

    dialect: str
    title: str
    sql: str | None
    why_not: str | None = None


def declarations(stored: StoredPolicy) -> list[Declaration]:
    return [_declaration(stored, dialect, title) for dialect, title in TITLES.items()]


def _declaration(stored: StoredPolicy, dialect: str, title: str) -> Declaration:
    try:
        return Declaration(dialect=dialect, title=title, sql=render(stored.policy, stored.table, dialect) + ";")
    except LapseError as error:
        why = f"{error.message}. {error.hint}" if error.hint else error.message
        return Declaration(dialect=dialect, title=title, sql=None, why_not=why)
