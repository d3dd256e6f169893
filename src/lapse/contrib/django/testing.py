"""For tests: what the worker would delete, deleted inside the test's own transaction."""

from __future__ import annotations

from typing import Any

from django.db import router

from lapse.contrib.django.live import Expired


def delete_expired(model: Any, *, using: str | None = None) -> int:
    """Delete the expired rows of a model on Django's connection; returns how many.

    As the worker does, it asks neither signals nor `on_delete`: the database alone decides.
    """
    rows = model._base_manager.using(using or router.db_for_write(model)).filter(Expired(model))
    return int(rows._raw_delete(rows.db))


__all__ = ["delete_expired"]
