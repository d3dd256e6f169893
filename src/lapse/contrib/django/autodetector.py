"""How `makemigrations` sees TTL: Django's autodetector, and what it finds besides.

The commands of Django name the class that they use, as an attribute since 5.2 and in their module before; so does every
application that adds to it. `install` puts one more class on top of what it finds there.
"""

from __future__ import annotations

from typing import Any

from django.core.management.commands import makemigrations, migrate
from django.db.migrations.operations import AlterField, RemoveField

from lapse.contrib.django.operations import RemoveTtl, SetTtl
from lapse.contrib.django.ttl import OPTION, target


class TtlAutodetector:
    """Mixed into an autodetector: operations for TTL that came, changed or went."""

    def _detect_changes(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Otherwise a model that is created would have it among its options, and no operation of its own.
        self._lapse_wanted = {key: target(found) for key, found in self.to_state.models.items()}
        for found in self.to_state.models.values():
            found.options = {name: value for name, value in found.options.items() if name != OPTION}
        return super()._detect_changes(*args, **kwargs)  # type: ignore[misc]

    def _sort_migrations(self: Any) -> None:
        """All other operations are there by now. What takes a policy away comes first, what sets one comes last."""
        for key in sorted(self.old_model_keys - self.new_model_keys):
            if target(self.from_state.models[key]) is not None:
                self.add_operation(key[0], RemoveTtl(self.from_state.models[key].name), beginning=True)
        for key in sorted(self.new_model_keys):
            app_label, name = key
            wanted = self._lapse_wanted.get(key)
            old = self.from_state.models.get((app_label, self.renamed_models.get(key, name)))
            before = target(old) if old is not None and key in self.old_model_keys else None
            if wanted == before:
                continue
            shown = self.to_state.models[key].name
            if before is not None and (wanted is None or self._takes_its_field_away(app_label, before)):
                self.add_operation(app_label, RemoveTtl(old.name), beginning=True)
            if wanted is not None:
                self.add_operation(app_label, SetTtl(shown, wanted[0]))
        super()._sort_migrations()  # type: ignore[misc]

    def _takes_its_field_away(self: Any, app_label: str, before: tuple[Any, ...]) -> bool:
        """Some databases refuse to drop or re-type a column that a policy's view or trigger reads."""
        field = before[0].field
        return any(
            isinstance(operation, RemoveField | AlterField) and operation.name == field
            for operation in self.generated_operations.get(app_label, ())
        )


def install() -> None:
    extended: dict[type[Any], type[Any]] = {}
    for module in (makemigrations, migrate):
        holder, name = (module, "MigrationAutodetector")
        if hasattr(module.Command, "autodetector"):
            holder, name = module.Command, "autodetector"
        found = getattr(holder, name)
        if not issubclass(found, TtlAutodetector):
            # Django checks that both commands use one and the same.
            extended.setdefault(found, type("MigrationAutodetector", (TtlAutodetector, found), {}))
            setattr(holder, name, extended[found])
