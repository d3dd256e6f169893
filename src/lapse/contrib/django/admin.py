"""A page in the admin: every policy, how it is doing, and its jobs. To look takes `lapse.view_policy`, to run, pause or
resume `lapse.control_policy`."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse

from lapse.contrib.django.catalog import VENDORS
from lapse.contrib.django.models import Policy
from lapse.errors import CatalogMissing, LapseError, NotFound

log = logging.getLogger("lapse.django")
JOBS_SHOWN = 10
DOINGS = {
    "run": ("request_run", "is due now: the next worker that looks starts its job"),
    "pause": ("pause", "is paused"),
    "resume": ("resume", "goes on"),
}
"""By the word in the form: a method of the facade, and what it does to the table."""


@admin.register(Policy)
class PolicyAdmin(admin.ModelAdmin):
    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        if not self.has_view_permission(request):
            raise PermissionDenied
        may_control = request.user.has_perm("lapse.control_policy")
        if request.method == "POST":
            if not may_control:
                raise PermissionDenied
            self._do(request)
            return HttpResponseRedirect(request.get_full_path())
        context = {
            **self.admin_site.each_context(request),
            "title": "Row-level TTL",
            "opts": self.model._meta,
            "may_control": may_control,
            "databases": [_look(connections[alias]) for alias in connections],
            **(extra_context or {}),
        }
        return TemplateResponse(request, "lapse/policies.html", context)

    def _do(self, request: Any) -> None:
        alias, table, doing = (request.POST.get(name, "") for name in ("database", "table", "do"))
        if alias not in connections or doing not in DOINGS:
            messages.error(request, "There is no such database or action.")
            return
        method, said = DOINGS[doing]
        from lapse.app import Lapse
        from lapse.contrib.django.database import url_of

        try:
            with Lapse(url_of(connections[alias]), must_exist=True) as database:
                found = [stored for stored in database.policies() if str(stored.table) == table]
                if not found:
                    raise NotFound(f"table {table} has no TTL policy")
                getattr(database, method)(found[0])
        except LapseError as error:
            messages.error(request, f"{table}: {error.message}")
        else:
            log.info("%s asked for %s of %s in %s", request.user.get_username(), doing, table, alias)
            messages.success(request, f"{table} {said}.")


def _look(connection: Any) -> dict[str, Any]:
    """What one database has to show; `problem` says why it has nothing."""
    from lapse.app import Lapse
    from lapse.app.records import expiry_words
    from lapse.contrib.django.database import url_of

    found: dict[str, Any] = {"alias": connection.alias, "policies": [], "jobs": [], "problem": None}
    if connection.vendor not in VENDORS:
        return found | {"problem": f"Lapse has no engine for {connection.display_name}."}
    try:
        with Lapse(url_of(connection), must_exist=True) as database:
            found["policies"] = [
                {
                    "table": str(each.stored.table),
                    "expires": expiry_words(each.stored.policy),
                    "health": each.health.words,
                    "why": each.why or "",
                    "next": each.starts_at,
                    "deleted": sum(part.last.counts.deleted for part in each.parts if part.last is not None),
                    "paused": each.stored.policy.pause,
                }
                for each in database.health()
            ]
            found["jobs"] = database.history(limit=JOBS_SHOWN)
    except CatalogMissing:
        found["problem"] = "No table has a TTL policy."
    except LapseError as error:
        found["problem"] = error.message
    return found
