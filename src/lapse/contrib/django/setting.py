"""The setting `LAPSE_TTL`: TTL for the tables of other applications, which know nothing of it.

    LAPSE_TTL = {
        "sessions.Session": "preset",
        "easy_thumbnails.Thumbnail": {"field": "modified", "after": timedelta(days=90)},
    }

`manage.py migrate` makes the database have it. What is no longer in the setting loses the policy that came from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from lapse.contrib.django.catalog import VENDORS, has_catalog, table_name
from lapse.contrib.django.operations import telling_errors
from lapse.contrib.django.ttl import Ttl

PRESET = "preset"
PRESETS = {
    "sessions.Session": Ttl("expire_date"),
    "admin.LogEntry": Ttl("action_time", timedelta(days=365)),
    "django_celery_results.TaskResult": Ttl("date_done", timedelta(days=30)),
    "django_celery_results.GroupResult": Ttl("date_done", timedelta(days=30)),
    "easy_thumbnails.Thumbnail": Ttl("modified", timedelta(days=90)),
    "axes.AccessAttempt": Ttl("attempt_time", timedelta(days=90)),
    "axes.AccessLog": Ttl("attempt_time", timedelta(days=90)),
    "oauth2_provider.AccessToken": Ttl("expires", timedelta(days=30)),
    "token_blacklist.OutstandingToken": Ttl("expires_at", timedelta(days=1)),
}
"""Tables that grow until a person thinks of them, and how long their rows are usually kept."""


def declared() -> dict[str, Ttl]:
    """By the label of the model. Raises ImproperlyConfigured."""
    found = {}
    for label, said in getattr(settings, "LAPSE_TTL", {}).items():
        if said == PRESET:
            if label not in PRESETS:
                known = ", ".join(PRESETS)
                raise ImproperlyConfigured(f"LAPSE_TTL: there is no preset for {label}. There are: {known}")
            found[label] = PRESETS[label]
        elif isinstance(said, Ttl):
            found[label] = said
        elif isinstance(said, Mapping):
            try:
                found[label] = Ttl(**said)
            except (ImproperlyConfigured, TypeError) as error:
                raise ImproperlyConfigured(f"LAPSE_TTL: {label}: {error}") from error
        else:
            raise ImproperlyConfigured(f"LAPSE_TTL: {label} must be 'preset' or a dictionary, not {said!r}")
    return found


def apply(sender: Any, using: str, **kwargs: Any) -> None:
    """After `migrate`, once for each application: its tables exist by now."""
    connection = connections[using]
    if connection.vendor not in VENDORS:
        return
    wanted = {
        model: ttl
        for label, ttl in declared().items()
        if (model := apps.get_model(label))._meta.app_label == sender.label and router.allow_migrate_model(using, model)
    }
    if wanted:
        _put(connection, wanted)
    if sender.label == "lapse" and has_catalog(connection):
        _remove_others(connection)


def _put(connection: Any, wanted: dict[Any, Ttl]) -> None:
    from lapse.catalog import policies
    from lapse.contrib.django.database import migrating
    from lapse.runner.policy_manager import as_stored

    for model, ttl in wanted.items():
        with telling_errors(model), migrating(connection) as migration:
            entry = ttl.entry(model, connection)
            assert entry.policy is not None
            table = table_name(model._meta.db_table)
            stored = migration.policy(table)
            from_settings = stored is not None and stored.source == policies.SETTINGS
            if stored is not None and from_settings and stored.policy == as_stored(entry.policy, stored.table):
                continue
            migration.put(table, entry.policy, keeps_pause=entry.keeps_pause, source=policies.SETTINGS)


def _remove_others(connection: Any) -> None:
    from lapse.catalog import policies
    from lapse.contrib.django.database import migrating

    kept = {table_name(apps.get_model(label)._meta.db_table).name.lower() for label in declared()}
    with migrating(connection) as migration:
        for stored in migration.all_policies():
            if stored.source == policies.SETTINGS and stored.table.name.lower() not in kept:
                migration.remove(stored.table)
