"""Archive tables: what every engine asks of them, and how they follow the tables whose rows they take.

An archive table has the columns of its table with their exact types, and nothing that could refuse or change a row: no
constraint, default, generated column or trigger. Lapse's own columns say when a row came, by which job, and in which
order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lapse.engines.values import BoundPolicy
from lapse.errors import PolicyConflict, Unsupported
from lapse.model.archive import OWN_COLUMNS, PACK, PACKED_ROWS, archive_table
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, FkAction, Table, TableName

_CASCADING = {
    FkAction.CASCADE: "deletes rows of",
    FkAction.SET_NULL: "changes rows of",
    FkAction.SET_DEFAULT: "changes rows of",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveShape:
    """A table as a destination sees it: `columns` are types as DDL writes them, by name. `flaws` are what could refuse
    or change a row, in words; `own` those of Lapse's own columns that are there as they should be. `folds`: are two
    names that differ in case one column?"""

    columns: Mapping[str, str]
    flaws: tuple[str, ...] = ()
    own: frozenset[str] = frozenset()
    folds: bool = True

    def type_of(self, column: str) -> str | None:
        if not self.folds:
            return self.columns.get(column)
        return {name.lower(): kind for name, kind in self.columns.items()}.get(column.lower())

    @property
    def is_archive(self) -> bool:
        return self.own == frozenset(OWN_COLUMNS)


def archive_of(declared: BoundPolicy) -> TableName | None:
    text = declared.policy.archive
    return None if text is None else archive_table(text, declared.table.name.whole)


def added(source: Mapping[str, str], archive: ArchiveShape) -> dict[str, str]:
    """Columns that the archive lacks."""
    return {name: kind for name, kind in source.items() if archive.type_of(name) is None}


def changed(source: Mapping[str, str], archive: ArchiveShape) -> list[str]:
    """Columns that have another type there, in words."""
    return [
        f"column {name} is {kind or 'without a type'} in the table and {there or 'without a type'} in the archive"
        for name, kind in source.items()
        if (there := archive.type_of(name)) is not None and there != kind
    ]


def to_check(declared: BoundPolicy, previous: Policy | None) -> TableName | None:
    """The archive table that a declaration names for the first time: one that is in use is looked at before every job,
    and keeps no one from placing a hold. Raises Refused for what no archive table can do, whatever the engine."""
    name = archive_of(declared)
    if name is None or (previous is not None and previous.archive == declared.policy.archive):
        return None
    _refuse(declared, name)
    return name


def _refuse(declared: BoundPolicy, name: TableName) -> None:
    table = declared.table
    if name == table.name.whole:
        raise PolicyConflict(f"table {table.name} cannot be its own archive", hint="ttl_archive = 'table:NAME'")
    own = {*OWN_COLUMNS, PACKED_ROWS, PACK}
    taken = [column.name for column in table.columns if column.name.lower() in own]
    if taken:
        raise Unsupported(
            f"table {table.name} has a column {taken[0]}, which the archive needs for its own",
            hint=f"rename the column {taken[0]}, or go without ttl_archive",
        )
    told = _reached(table)
    if told:
        raise Unsupported(
            f"deleting from table {table.name} also {told} by a foreign key, and these rows would not be archived",
            hint="make the foreign key ON DELETE RESTRICT or NO ACTION, or go without ttl_archive",
        )


def _reached(table: Table) -> str:
    """Rows of other tables that go, or change, with those of this one, in words."""
    found = [each for each in table.referenced_by if each.action in _CASCADING]
    return ", ".join(sorted({f"{_CASCADING[each.action]} table {each.table}" for each in found}))


def refuse_foreign(name: TableName, table: TableName, source: Mapping[str, str], found: ArchiveShape | None) -> None:
    """What is there under the archive's name must be an archive that fits. Raises PolicyConflict."""
    if found is None:
        return
    if not found.is_archive:
        raise PolicyConflict(
            f"there is already a table {name}, which is not an archive of Lapse's",
            hint="name another one: ttl_archive = 'table:NAME'",
        )
    wrong = [*found.flaws, *changed(source, found)]
    if wrong:
        raise PolicyConflict(
            f"archive table {name} cannot take the rows of table {table}: {'; '.join(wrong)}",
            hint=f"put that right, rename {name}, or name another one: ttl_archive = 'table:NAME'",
        )


def missing(table: Table, name: TableName, source: Mapping[str, str], found: ArchiveShape | None) -> list[str]:
    """What keeps the archive from taking rows now, in words: drift."""
    told = _reached(table)
    if told:
        return [f"a way to archive what goes with the rows: deleting them also {told} by a foreign key"]
    if found is None:
        return [f"archive table {name}"]
    if not found.is_archive:
        return [f"archive table {name} ({', '.join(sorted(set(OWN_COLUMNS) - found.own))} is not what it was)"]
    wrong = [*found.flaws, *changed(source, found)]
    if wrong:
        return [f"archive table {name} as it was ({'; '.join(wrong)})"]
    return [f"column {column} of archive table {name}" for column in added(source, found)]


def planned(declared: BoundPolicy, source: Mapping[str, str], managed_type: str) -> dict[str, str]:
    """The columns once the policy is installed: with a managed column, where there is none yet."""
    if declared.policy.expire_after is None or MANAGED_COLUMN in source:
        return dict(source)
    return {**source, MANAGED_COLUMN: managed_type}
