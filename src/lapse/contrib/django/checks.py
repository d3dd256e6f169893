"""System checks: a TTL that cannot work, or that works badly, is told by `manage.py check`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db import connections, models, router

from lapse.contrib.django import setting
from lapse.contrib.django.catalog import VENDORS
from lapse.contrib.django.live import LiveManager
from lapse.contrib.django.ttl import LIVE, Ttl, ttl_of
from lapse.errors import LapseError

_TIMES = (models.DateField, models.IntegerField, models.FloatField, models.DecimalField)


def check_models(app_configs: Any, **kwargs: Any) -> list[Any]:
    found = apps.get_models() if app_configs is None else [m for config in app_configs for m in config.get_models()]
    own = [message for model in found if (ttl := ttl_of(model)) is not None for message in _check(model, ttl)]
    return own if app_configs is not None else [*own, *_check_setting()]


def _check_setting() -> Iterator[Any]:
    try:
        for label, ttl in setting.declared().items():
            model = apps.get_model(label)
            if ttl_of(model) is not None:
                hint = "Remove it from LAPSE_TTL."
                yield checks.Error("The model has a Ttl of its own.", hint=hint, obj=model, id="lapse.E009")
            yield from _check_field(model, ttl)
    except (ImproperlyConfigured, LookupError, ValueError) as error:
        yield checks.Error(f"LAPSE_TTL: {error}", id="lapse.E008")


def _check(model: Any, ttl: Ttl) -> Iterator[Any]:
    if not model._meta.managed or model._meta.proxy:
        kind = "a proxy" if model._meta.proxy else "not managed by Django"
        hint = "Declare it on the model that has the table, or with `manage.py lapse sql`."
        yield checks.Error(f"The model is {kind}, so its Ttl has no effect.", hint=hint, obj=model, id="lapse.E001")
        return
    if model._meta.parents:
        yield checks.Error(
            "Ttl on a model of multi-table inheritance would delete half of each object.",
            hint="Declare it on the parent; the rows of both tables then have to be deleted by the application.",
            obj=model,
            id="lapse.E002",
        )
        return
    yield from _check_field(model, ttl)
    yield from _check_references(model)
    if not isinstance(getattr(model, LIVE, None), LiveManager):
        yield checks.Warning(
            f"The model has its own {LIVE!r}, so there is no manager of live rows.",
            hint="Rename it.",
            obj=model,
            id="lapse.W003",
        )


def _check_field(model: Any, ttl: Ttl) -> Iterator[Any]:
    if ttl.field is not None:
        try:
            field = model._meta.get_field(ttl.field)
        except FieldDoesNotExist:
            names = ", ".join(sorted(each.name for each in model._meta.local_concrete_fields))
            yield checks.Error(
                f"Ttl refers to the field {ttl.field!r}, which the model does not have.",
                hint=f"It has: {names}.",
                obj=model,
                id="lapse.E003",
            )
            return
        if not isinstance(field, _TIMES):
            yield checks.Error(
                f"The field {ttl.field!r} of Ttl is a {type(field).__name__}, which holds no times.",
                hint="Use a DateTimeField, a DateField, or a number of seconds.",
                obj=model,
                id="lapse.E004",
            )
            return
        if not _is_indexed(model, field):
            yield checks.Warning(
                f"No index begins with {ttl.field!r}, so expired rows are found by reading the whole table.",
                hint=f"Give the field db_index=True, or the model Index(fields=[{ttl.field!r}]).",
                obj=model,
                id="lapse.W001",
            )
    yield from _check_zone(model, ttl)


def _is_indexed(model: Any, field: Any) -> bool:
    if field.db_index or field.unique or field.primary_key:
        return True
    listed = [index.fields[:1] for index in model._meta.indexes] + [
        list(each[:1]) for each in model._meta.unique_together
    ]
    return any([name.lstrip("-") for name in first] == [field.name] for first in listed)


def _check_zone(model: Any, ttl: Ttl) -> Iterator[Any]:
    connection = connections[router.db_for_write(model)]
    if connection.vendor not in VENDORS:
        hint = f"Lapse works with {', '.join(VENDORS)}."
        yield checks.Error(f"Lapse has no engine for {connection.display_name}.", hint=hint, obj=model, id="lapse.E005")
        return
    written, said = ttl.zone(model, connection), ttl.parameters.get("time_zone")
    if said is not None and said != (written or said):
        yield checks.Error(
            f"Ttl reads its times in {said}, but Django writes them in {written}.",
            hint="Leave time_zone out: Lapse then reads them as Django writes them.",
            obj=model,
            id="lapse.E006",
        )
    elif written is not None and not settings.USE_TZ and _changes_its_clocks(written):
        yield checks.Warning(
            f"USE_TZ is False: times of the hour that occurs twice when the clocks of {written} go back are ambiguous. "
            "Rows live by the later reading.",
            hint="Set USE_TZ = True.",
            obj=model,
            id="lapse.W002",
        )
    if ttl.expression is not None:
        try:
            ttl.entry(model, connection)
        except LapseError as error:
            yield checks.Error(error.message, hint=error.hint, obj=model, id="lapse.E007")


def _changes_its_clocks(zone: str) -> bool:
    return len({datetime(2026, month, 1, tzinfo=ZoneInfo(zone)).utcoffset() for month in range(1, 13)}) > 1


def _check_references(model: Any) -> Iterator[Any]:
    """Django itself does what `on_delete` says; the database knows nothing of it."""
    holding = [
        each.related_model._meta.label
        for each in model._meta.related_objects
        if each.field.db_constraint and not str(getattr(each.on_delete, "__name__", each.on_delete)).startswith("DB_")
        and not each.many_to_many
    ]  # fmt: skip
    if holding:
        yield checks.Warning(
            f"Rows to which {', '.join(sorted(set(holding)))} refers are not deleted: on_delete is Django's, and the "
            "database refuses.",
            hint="Give the referring model a Ttl that is not longer, or let the database cascade.",
            obj=model,
            id="lapse.W004",
        )
