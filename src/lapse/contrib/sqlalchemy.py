"""TTL declared on SQLAlchemy's tables: `__lapse__ = Ttl(…)` on a class, `Table(…, info={"lapse": …})` on a table.

class Session(Base):
    __tablename__ = "sessions"
    __lapse__ = Ttl(after=timedelta(hours=8))

session.scalars(select(Session).options(live(Session)))
lapse.contrib.sqlalchemy.apply(Base.metadata, "postgresql://…")
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Boolean, ColumnElement, MetaData, Table, event, false
from sqlalchemy import inspect as inspect_class
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.util import LoaderCriteriaOption
from sqlalchemy.sql.functions import FunctionElement

from lapse.app import Lapse, Plan, PolicyFile
from lapse.app.policyfile import TableEntry, entry_from_keys
from lapse.contrib import declaration
from lapse.engines.base import BoundPolicy
from lapse.engines.querying import expired_now
from lapse.errors import PolicyConflict, UsageError
from lapse.model.table import Column, TableKind, TableName
from lapse.model.table import Table as TableValue
from lapse.runner.policy_manager import bind

INFO_KEY = "lapse"
CLASS_KEY = "__lapse__"


class Ttl:
    """When the rows of a table expire, and how they are deleted.

    `column` and `after`: so long after the time in the column; `column` alone: at that time; `after` alone: so long
    after a row was inserted or last updated, by a column that Lapse manages; or an `expression` in SQL. `hide=True`
    makes a view of the live rows. Durations are timedeltas, or texts such as '3 months'. `parameters` are those of
    `ALTER TABLE … SET (ttl_…)`, without `ttl_`.
    """

    def __init__(
        self,
        column: str | None = None,
        after: timedelta | str | None = None,
        *,
        expression: str | None = None,
        hide: bool | str = False,
        **parameters: declaration.Value,
    ) -> None:
        self.keys = declaration.keys(column, after, expression, hide, parameters)

    def __repr__(self) -> str:
        return f"Ttl({self.keys})"


@event.listens_for(Mapper, "after_mapper_constructed")
def _note(mapper: Mapper[Any], class_: type) -> None:
    """A subclass with a table of its own does not inherit the policy of its parent's table."""
    found = getattr(class_, CLASS_KEY, None)
    is_own = CLASS_KEY in vars(class_) or mapper.inherits is None
    if found is not None and is_own and isinstance(mapper.local_table, Table):
        mapper.local_table.info[INFO_KEY] = found


def entry_of(table: Table) -> TableEntry | None:
    """What a table says about TTL; None where it says nothing. Raises UsageError or PolicyConflict."""
    said = table.info.get(INFO_KEY)
    if said is None:
        return None
    keys = said.keys if isinstance(said, Ttl) else said
    if not isinstance(keys, Mapping):
        raise UsageError(f"table {table.fullname}: {INFO_KEY} must be a Ttl or a dictionary, not {keys!r}")
    return entry_from_keys(table.fullname, keys, place=f"table {table.fullname}")


def policies_of(metadata: MetaData) -> PolicyFile:
    """What the tables of a metadata say about TTL; a table without a word is left alone."""
    found = [entry for table in metadata.sorted_tables if (entry := entry_of(table)) is not None]
    return PolicyFile(path=Path("metadata"), environment=None, url=None, tables=tuple(found))


def plan(metadata: MetaData, url: str) -> Plan:
    """What `apply` would change; changes nothing."""
    with Lapse(url) as database:
        return database.plan(policies_of(metadata))


def apply(metadata: MetaData, url: str) -> Plan:
    """Make the database have the policies of the tables, which must exist; returns what was changed."""
    with Lapse(url) as database:
        found = database.plan(policies_of(metadata))
        if found.problems:
            first = found.problems[0]
            raise PolicyConflict(f"{first.place}: {first.text}")
        database.apply(found)
        return found


def live(entity: type[Any]) -> Any:
    """An option for a select: of this class, only rows that have not expired, wherever in the statement it occurs.

    A row whose expiry is NULL never expires. The database's clock decides.
    """
    return _Live(entity, ~expired(entity), include_aliases=True)


class _Live(LoaderCriteriaOption):
    """SQLAlchemy writes a criterion for an alias anew only where it is a lambda, whose every value it would cache."""

    inherit_cache = False

    def _resolve_where_criteria(self, ext_info: Any) -> ColumnElement[bool]:
        plain = LoaderCriteriaOption(ext_info.mapper.class_, ~expired(ext_info.entity), include_aliases=True)
        return plain._resolve_where_criteria(ext_info)


def expired(entity: type[Any]) -> ColumnElement[bool]:
    """A condition that is true for the expired rows of a class, or of an alias of it, and false for all others."""
    mapper = inspect_class(entity).mapper
    table = mapper.local_table
    entry = entry_of(table) if isinstance(table, Table) else None
    if entry is None or entry.policy is None:
        raise UsageError(f"{mapper.class_.__name__} has no TTL", hint=f"give it {CLASS_KEY} = Ttl(…)")
    known = getattr(entity, mapper.get_property_by_column(next(iter(table.primary_key))).key)
    return _Expired(table, entry, known)


class _Expired(FunctionElement[bool]):
    """One column of the table goes along: by it the statement's name for the table is found."""

    type = Boolean()
    inherit_cache = False

    def __init__(self, table: Table, entry: TableEntry, known: Any) -> None:
        self.table, self.entry = table, entry
        super().__init__(known)


@compiles(_Expired)
def _write(element: _Expired, compiler: Any, **options: Any) -> str:
    dialect = compiler.dialect
    backend = "mysql" if dialect.name == "mariadb" else dialect.name
    (known,) = element.clauses
    quote = compiler.preparer.quote_identifier
    written = compiler.process(known, **options)
    prefix = written.removesuffix(quote(known.name)).removesuffix(known.name)

    def column_sql(name: str) -> str:
        return f"{prefix}{quote(name)}"

    sql = expired_now(backend, _declared(element, dialect), datetime.now(UTC), column_sql)
    if compiler.preparer._double_percents:
        sql = sql.replace("%", "%%")
    return f"coalesce({sql}, {compiler.process(false())})"


def _declared(element: _Expired, dialect: Any) -> BoundPolicy:
    columns = tuple(
        Column(name=each.name, type=_type(each.type.compile(dialect=dialect))) for each in element.table.columns
    )
    name = TableName(element.table.name, element.table.schema)
    assert element.entry.policy is not None
    return bind(TableValue(name=name, kind=TableKind.TABLE, columns=columns), element.entry.policy)


def _type(written: str) -> str:
    """As the engine itself writes it."""
    lower = written.lower()
    return "bigint" if lower == "bigserial" else lower


__all__ = ["CLASS_KEY", "INFO_KEY", "Ttl", "apply", "entry_of", "expired", "live", "plan", "policies_of"]
