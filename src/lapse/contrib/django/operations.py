"""Operations of migrations: `SetTtl` and `RemoveTtl`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db.migrations.operations.base import Operation

from lapse.contrib.django.ttl import OPTION, Ttl, ttl_of
from lapse.errors import LapseError

log = logging.getLogger("lapse.django")
FOR_LAPSE = "-- for `manage.py lapse sql -f`; other clients do not understand it"


try:
    from django.db.migrations.operations.base import OperationCategory
except ImportError:  # Django before 5.1
    _CATEGORY: Any = None
else:
    _CATEGORY = OperationCategory.ALTERATION


class _TtlOperation(Operation):
    category = _CATEGORY
    reduces_to_sql = True
    reversible = True

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    @property
    def model_name_lower(self) -> str:
        return str(self.model_name).lower()

    def references_model(self, name: str, app_label: str) -> bool:
        return name.lower() == self.model_name_lower

    def references_field(self, model_name: str, name: str, app_label: str) -> bool:
        """Of the policy's own field the optimizer must not move anything past it, whatever the policy was before."""
        return self.references_model(model_name, app_label)

    def reduce(self, operation: Any, app_label: str) -> Any:
        if isinstance(operation, _TtlOperation) and operation.model_name_lower == self.model_name_lower:
            return [operation]
        return super().reduce(operation, app_label) or not operation.references_model(self.model_name, app_label)

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """To the TTL that the model has in the other state, whichever way that is."""
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            set_ttl(schema_editor, model, ttl_of(model))

    database_backwards = database_forwards


class SetTtl(_TtlOperation):
    """Give the table of a model its TTL, or another one."""

    def __init__(self, model_name: str, ttl: Ttl) -> None:
        super().__init__(model_name)
        self.ttl = ttl

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [], {"model_name": self.model_name, "ttl": self.ttl}

    def state_forwards(self, app_label: str, state: Any) -> None:
        state.alter_model_options(app_label, self.model_name_lower, {OPTION: self.ttl})

    def describe(self) -> str:
        return f"Set the TTL of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"set_{self.model_name_lower}_ttl"


class RemoveTtl(_TtlOperation):
    """Take the TTL of a model's table away; its rows stay."""

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [], {"model_name": self.model_name}

    def state_forwards(self, app_label: str, state: Any) -> None:
        state.alter_model_options(app_label, self.model_name_lower, {}, {OPTION})

    def describe(self) -> str:
        return f"Remove the TTL of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"remove_{self.model_name_lower}_ttl"


def set_ttl(schema_editor: Any, model: Any, ttl: Ttl | None) -> None:
    """Make `ttl` the policy of a model's table, or leave it none; with `sqlmigrate`, say so."""
    from lapse.contrib.django.catalog import table_name
    from lapse.contrib.django.database import migrating
    from lapse.ddl.render import render
    from lapse.ddl.render import table_name as written_name

    connection, table = schema_editor.connection, table_name(model._meta.db_table)
    with telling_errors(model):
        entry = None if ttl is None else ttl.entry(model, connection)
        if schema_editor.collect_sql:
            written = f"ALTER TABLE {written_name(table, 'lapse')} RESET (ttl)"
            if entry is not None and entry.policy is not None:
                written = render(entry.policy, table, "lapse")
            schema_editor.collected_sql += [FOR_LAPSE, f"{written};"]
            return
        # The schema editor follows the policy from now on.
        schema_editor.lapse_policies = None
        with migrating(connection) as migration:
            if entry is None or entry.policy is None:
                migration.remove(table)
                return
            for notice in migration.put(table, entry.policy, keeps_pause=entry.keeps_pause):
                log.warning("%s: %s", model._meta.label, notice)


@contextmanager
def telling_errors(model: Any) -> Iterator[None]:
    try:
        yield
    except LapseError as error:
        hint = f"\n{error.hint}" if error.hint else ""
        raise CommandError(f"the TTL of {model._meta.label}: {error.message}{hint}") from error
