"""What people ask for from the database's own client: done by a worker, after it has asked again whether they may.

A policy is declared, changed or removed where the worker's own role owns the table, or a setting trusts its owner, as
with policies in comments: it takes the owner's rights. A run, and a look at what it would do, take no right on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from lapse.app.control import Control
from lapse.app.policyfile.reading import parameter_fields
from lapse.app.preview import Preview, outlook
from lapse.catalog import Catalog, policies, settings
from lapse.catalog.policies import StoredPolicy
from lapse.ddl.literal import quote_double
from lapse.engines.base import ClientRequest
from lapse.errors import DatabaseUnavailable, LapseError, NotFound, NotPermitted, UsageError
from lapse.model import interval
from lapse.model.policy import PolicyChange
from lapse.model.table import TableName
from lapse.runner.policy_manager import PolicyManager
from lapse.runner.service import Service

LOOK_SECONDS = 2.0
DONE, REFUSED = "done", "refused"

log = logging.getLogger("lapse.worker")


class RequestDesk(Service):
    name = "requests"
    seconds = LOOK_SECONDS

    def __init__(self, catalog: Catalog, control: Control, preview: Callable[..., list[Preview]]) -> None:
        super().__init__()
        self._catalog = catalog
        self._engine = catalog.engine
        self._control = control
        self._preview = preview
        self._manager = PolicyManager(catalog)

    def run_once(self) -> None:
        if not self._engine.features.client_requests:
            return
        with self._catalog.reading() as connection:
            waiting = self._engine.waiting_requests(connection)
        for request in waiting:
            if self._closing.is_set():
                return
            self._answer(request)

    def _answer(self, request: ClientRequest) -> None:
        """What fails for one is that one's alone."""
        with self._catalog.writing() as connection:
            if not self._engine.claim_request(connection, request):
                return
        try:
            state, answer = DONE, self._do(request)
        except DatabaseUnavailable:
            raise
        except LapseError as error:
            state, answer = REFUSED, str(error)
        except Exception as error:
            log.exception("request %d met an error", request.id)
            state, answer = REFUSED, f"{type(error).__name__}: {error}"
        with self._catalog.writing() as connection:
            self._engine.finish_request(connection, request, state, answer)
        log.info("request %d (%s): %s", request.id, request.command, answer)

    def _do(self, request: ClientRequest) -> str:
        if request.command in ("set_ttl", "reset_ttl"):
            with self._catalog.writing() as connection, self._engine.briefly(connection):
                name = self._declared_here(connection, request)
                return self._change(connection, name, request)
        if request.command == "preview" and request.arguments:
            return self._try(request)
        with self._catalog.writing() as connection:
            if request.command in ("pause", "resume"):
                name = self._declared_here(connection, request)
            else:
                name, _ = self._engine.requested_table(connection, request)
            stored = policies.find_policy(connection, name)
        if stored is None:
            raise NotFound(f"table {name} has no TTL policy", hint="declare one with set_ttl")
        return self._tell(stored, request.command)

    def _declared_here(self, connection: Connection, request: ClientRequest) -> TableName:
        name, owner = self._engine.requested_table(connection, request)
        if self._engine.role(connection) != owner and not settings.load_settings(connection).trusts(owner):
            raise NotPermitted(
                f"table {name} belongs to {owner}, whose tables this worker does not change",
                hint=f"declare it as {owner} with `lapse sql`, or let the workers act for {owner}: docs/clients.md",
            )
        return name

    def _change(self, connection: Connection, name: TableName, request: ClientRequest) -> str:
        removes = request.command == "reset_ttl"
        change = PolicyChange(set={}, remove=True) if removes else _change(request.arguments)
        notices = self._manager.change(connection, name, change)
        return "; ".join(("the TTL was removed" if removes else "the TTL is set", *notices))

    def _tell(self, stored: StoredPolicy, command: str) -> str:
        if command == "preview":
            return _summary(self._preview(stored))
        if command == "run":
            self._control.request_run(stored)
            return "the table is due now"
        if command == "pause":
            self._control.pause(stored)
            return "paused"
        self._control.resume(stored)
        return "resumed"

    def _try(self, request: ClientRequest) -> str:
        """A policy that is not declared: the worker itself reads the table, as it does on trusted tables alone."""
        with self._catalog.writing() as connection:
            name = self._declared_here(connection, request)
        column, after = request.arguments.get("column"), request.arguments.get("after")
        quoted = ".".join(quote_double(part) for part in (name.schema, name.name) if part)
        return _summary(self._preview(quoted, column=column, after=after))


def _summary(previews: Sequence[Preview]) -> str:
    return str(outlook([each.survey for each in previews], [each.consequences for each in previews]))


def _change(arguments: Mapping[str, Any]) -> PolicyChange:
    """Raises InvalidValue and TtlSyntaxError for what no policy can be."""
    fields: dict[str, Any] = {}
    column, after = arguments.get("column"), arguments.get("after")
    if after is not None:
        duration = interval.parse(str(after), name="after")
        fields |= {"expire_after": duration} if column is None else {"column": str(column), "interval": duration}
    elif column is not None:
        raise UsageError("how long after the time in the column?", hint="set_ttl(table, column, duration)")
    for name, value in dict(arguments.get("options") or {}).items():
        text = {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
        fields |= parameter_fields(str(name), text)
    return PolicyChange(set=fields)
