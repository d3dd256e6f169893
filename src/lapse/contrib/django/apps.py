"""The application's configuration."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class LapseConfig(AppConfig):
    name = "lapse.contrib.django"
    label = "lapse"
    verbose_name = "Lapse"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from lapse.contrib.django import autodetector, editor, setting
        from lapse.contrib.django.checks import check_models

        autodetector.install()
        checks.register(check_models, checks.Tags.models)
        connection_created.connect(_use_editor, dispatch_uid="lapse.contrib.django")
        post_migrate.connect(setting.apply, dispatch_uid="lapse.contrib.django")
        for connection in connections.all():
            editor.install(connection)


def _use_editor(sender: object, connection: object, **kwargs: object) -> None:
    from lapse.contrib.django import editor

    editor.install(connection)
