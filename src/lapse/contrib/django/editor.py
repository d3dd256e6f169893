"""Django's changes of tables, with policies that go along: tables that are made anew, renamed or dropped; views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lapse.contrib.django.catalog import VENDORS, has_catalog, table_name
from lapse.contrib.django.operations import telling_errors
from lapse.errors import NotPermitted

if TYPE_CHECKING:
    from lapse.app.migration import Migration


class TtlSchemaEditor:
    """Mixed into a schema editor."""

    lapse_policies: frozenset[str] | None = None
    """Names, in lower case, of tables with a policy; None where they have to be looked up."""
    _lapse_reshaping = False

    def _remake_table(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """SQLite: a new table, into which the rows are copied, takes the place of the old one."""
        with self._lapse_reshaped(model):
            return super()._remake_table(model, *args, **kwargs)  # type: ignore[misc]

    def alter_field(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lapse_reshaped(model):
            return super().alter_field(model, *args, **kwargs)  # type: ignore[misc]

    def remove_field(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lapse_reshaped(model):
            return super().remove_field(model, *args, **kwargs)  # type: ignore[misc]

    def add_field(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        done = super().add_field(model, *args, **kwargs)  # type: ignore[misc]
        with self._lapse(model, model._meta.db_table) as migration:
            if migration is not None:
                migration.renew_view(table_name(model._meta.db_table))
        return done

    def alter_db_table(self: Any, model: Any, old_db_table: str, new_db_table: str, *args: Any, **kwargs: Any) -> Any:
        alter = super().alter_db_table  # type: ignore[misc]
        with self._lapse(model, old_db_table) as migration:
            if migration is None or old_db_table == new_db_table:
                return alter(model, old_db_table, new_db_table, *args, **kwargs)
            with migration.renaming(table_name(old_db_table), table_name(new_db_table)):
                done = alter(model, old_db_table, new_db_table, *args, **kwargs)
        self.lapse_policies = None
        return done

    def delete_model(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        delete = super().delete_model  # type: ignore[misc]
        with self._lapse(model, model._meta.db_table) as migration:
            if migration is None:
                return delete(model, *args, **kwargs)
            with migration.dropping(table_name(model._meta.db_table)):
                return delete(model, *args, **kwargs)

    @contextmanager
    def _lapse_reshaped(self: Any, model: Any) -> Iterator[None]:
        """What the policy has put into the database is put back once the table has its new shape."""
        with self._lapse(model, model._meta.db_table) as migration:
            if migration is None:
                yield
                return
            shaping = migration.rebuilding if self.connection.vendor == "sqlite" else migration.without_view
            self._lapse_reshaping = True
            try:
                with shaping(table_name(model._meta.db_table)):
                    yield
            finally:
                self._lapse_reshaping = False

    @contextmanager
    def _lapse(self: Any, model: Any, db_table: str) -> Iterator[Migration | None]:
        """None for a table without a policy, and inside another change of the table. `sqlmigrate` changes none."""
        follows = not self._lapse_reshaping and not self.collect_sql and self.connection.vendor in VENDORS
        if not follows or table_name(db_table).name.lower() not in self._lapse_tables():
            yield None
            return
        from lapse.contrib.django.database import migrating

        with telling_errors(model), migrating(self.connection) as migration:
            yield migration

    def _lapse_tables(self: Any) -> frozenset[str]:
        if self.lapse_policies is None:
            found: frozenset[str] = frozenset()
            if has_catalog(self.connection):
                from lapse.contrib.django.database import migrating

                with migrating(self.connection) as migration:
                    try:
                        found = frozenset(stored.table.name.lower() for stored in migration.all_policies())
                    except NotPermitted:
                        # A role that may not read the catalog has declared none.
                        found = frozenset()
            self.lapse_policies = found
        known: frozenset[str] = self.lapse_policies
        return known


def install(connection: Any) -> None:
    """Have one connection of Django's use it, whatever schema editor its backend has."""
    found = connection.SchemaEditorClass
    if found is not None and not issubclass(found, TtlSchemaEditor):
        connection.SchemaEditorClass = type(found.__name__, (TtlSchemaEditor, found), {})
