"""`Ttl` on a model: when the rows of its table expire, and how they are deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db import models
from django.db.migrations import state
from django.db.models import options
from django.db.models.signals import class_prepared
from django.utils.deconstruct import deconstructible

from lapse.contrib import declaration
from lapse.contrib.django.live import LiveManager
from lapse.errors import LapseError

if TYPE_CHECKING:
    from lapse.app.policyfile import TableEntry

OPTION = "lapse_ttl"
"""The option of `Meta` that carries it through the states of migrations."""
LIVE = "live"

for _module in (options, state):
    # Django refuses options that it does not know, and leaves them out of the states of migrations.
    if OPTION not in _module.DEFAULT_NAMES:
        _module.DEFAULT_NAMES = (*_module.DEFAULT_NAMES, OPTION)


@deconstructible(path="lapse.contrib.django.Ttl")
class Ttl:
    """`field` and `after`: rows expire so long after the time in the field; `field` alone: at that time; `after` alone:
    so long after they were inserted or last updated, by a column that Lapse manages; or an `expression` in SQL.

    `hide=True` makes a view of the live rows, `hide="policy"` hides expired rows by row security (PostgreSQL).
    Durations are timedeltas, or texts such as '3 months'. `parameters` are those of `ALTER TABLE … SET (ttl_…)`,
    without `ttl_`.
    """

    def __init__(
        self,
        field: str | None = None,
        after: timedelta | str | None = None,
        *,
        expression: str | None = None,
        hide: bool | str = False,
        **parameters: declaration.Value,
    ) -> None:
        try:
            # A mistake is told where it is made.
            declaration.keys(field, after, expression, hide, parameters)
        except LapseError as error:
            raise ImproperlyConfigured(f"{error.message}{f'. {error.hint}' if error.hint else ''}") from error
        self.field = field
        self.after = after
        self.expression = expression
        self.hide = hide
        self.parameters = parameters

    def __repr__(self) -> str:
        return f"Ttl({self._said()})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ttl) and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(repr(self))

    def _said(self) -> dict[str, Any]:
        return declaration.keys(self.field, self.after, self.expression, self.hide, self.parameters)

    def contribute_to_class(self, model: Any, name: str) -> None:
        setattr(model, name, self)
        model._meta.lapse_ttl = self
        model._meta.original_attrs[OPTION] = self

    def entry(self, model: Any, connection: Any) -> TableEntry:
        """The policy for the table of a model in one database. Raises LapseError."""
        from lapse.app.policyfile import entry_from_keys

        column = None if self.field is None else model._meta.get_field(self.field).column
        parameters = dict(self.parameters)
        zone = self.zone(model, connection)
        if zone is not None:
            parameters.setdefault("time_zone", zone)
        keys = declaration.keys(column, self.after, self.expression, self.hide, parameters)
        return entry_from_keys(model._meta.db_table, keys, place=f"the TTL of {model._meta.label}")

    def zone(self, model: Any, connection: Any) -> str | None:
        """In which Django writes the times that have none; None where the database keeps instants."""
        if self.field is not None:
            kind = model._meta.get_field(self.field)
            if isinstance(kind, models.DateField) and not isinstance(kind, models.DateTimeField):
                return str(settings.TIME_ZONE)
            if not isinstance(kind, models.DateTimeField):
                return None
        elif self.after is not None:
            return None
        zone = str(connection.timezone_name)
        if connection.vendor == "postgresql" or (connection.vendor == "sqlite" and zone == "UTC"):
            return None
        return zone


def ttl_of(model: Any) -> Ttl | None:
    found = getattr(model._meta, OPTION, None)
    return found if isinstance(found, Ttl) else None


def target(model_state: Any) -> tuple[Any, ...] | None:
    """What a state of migrations means by its TTL: another column under the same name of a field is another policy."""
    ttl = model_state.options.get(OPTION)
    if ttl is None:
        return None
    field = None if ttl.field is None else model_state.fields.get(ttl.field)
    column = None if field is None else field.db_column or ttl.field
    return (ttl, column, None if field is None else type(field))


def _prepare(sender: Any, **kwargs: Any) -> None:
    """Models inherit the TTL of abstract ones. Managers come last, so that `objects` stays what it was."""
    if ttl_of(sender) is None:
        for base in sender.__mro__[1:]:
            inherited = getattr(getattr(base, "_meta", None), OPTION, None)
            if inherited is not None and base._meta.abstract and not sender._meta.proxy:
                sender._meta.lapse_ttl = inherited
                sender._meta.original_attrs[OPTION] = inherited
                break
    if ttl_of(sender) is None or hasattr(sender, LIVE):
        return
    try:
        sender._meta.get_field(LIVE)
    except FieldDoesNotExist:
        sender.add_to_class(LIVE, LiveManager())


class_prepared.connect(_prepare, dispatch_uid="lapse.contrib.django")
