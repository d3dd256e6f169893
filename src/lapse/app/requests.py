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
from lapse.catalog import Catalog, holds, policies, settings
from lapse.catalog.policies import StoredPolicy
from lapse.ddl.literal import quote_double
from lapse.engines.base import ClientRequest
from lapse.errors import DatabaseUnavailable, LapseError, NotFound, NotPermitted, UsageError
from lapse.model import interval
from lapse.model.actor import acting
from lapse.model.hold import read_instant
from lapse.model.policy import PolicyChange
from lapse.model.table import TableName
from lapse.runner.holds import Holder
from lapse.runner.policy_manager import PolicyManager
from lapse.runner.service import REQUESTS, Service

LOOK_SECONDS = 2.0
TOLD_SECONDS = 30.0
"""Where the worker looks by itself whether there are any, every second, and wakes the service."""
DONE, REFUSED = "done", "refused"
ARGUMENTS: Mapping[str, Sequence[str]] = {
    "set_ttl": ("column", "after", "options"),
    "reset_ttl": (),
    "run": (),
    "pause": (),
    "resume": (),
    "preview": ("column", "after"),
    "hold": ("where", "until", "reason"),
    "release": ("hold",),
}
"""What can be asked for, and with which arguments."""

log = logging.getLogger("lapse.worker")


class RequestService(Service):
    name = REQUESTS
    seconds = LOOK_SECONDS

    def __init__(self, catalog: Catalog, control: Control, preview: Callable[..., list[Preview]]) -> None:
        super().__init__()
        self._catalog = catalog
        self._engine = catalog.engine
        self._control = control
        self._preview = preview
        self._manager = PolicyManager(catalog)
        self._holder = Holder(catalog)

    def pause(self) -> float:
        return TOLD_SECONDS if self.is_told else self.seconds

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
            with acting(user=request.requester, program=f"{request.command} in the database"):
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
        _refuse_unknown(request)
        if request.command in ("set_ttl", "reset_ttl"):
            with self._catalog.writing() as connection, self._engine.briefly(connection):
                name = self._declared_here(connection, request)
                return self._change(connection, name, request)
        if request.command in ("hold", "release"):
            with self._catalog.writing() as connection:
                name = self._declared_here(connection, request)
                return self._hold(connection, name, request)
        if request.command == "preview" and any(each is not None for each in request.arguments.values()):
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
        is_own = request.requester == self._engine.role(connection)
        if not is_own and any(field.startswith("archive") for field in change.set):
            # An archive is another table, on which the role that asks may have no rights.
            raise NotPermitted(
                "archives are not set up for other roles: the worker would write them with its own rights",
                hint="declare ttl_archive with `lapse sql`",
            )
        notices = self._manager.change(connection, name, change)
        return "; ".join(("the TTL was removed" if removes else "the TTL is set", *notices))

    def _hold(self, connection: Connection, name: TableName, request: ClientRequest) -> str:
        """It holds when this transaction is committed, which is before the request is called done."""
        given = request.arguments
        if request.command == "release":
            number = int(given["hold"])
            if holds.get_hold(connection, number).table != name:
                raise NotFound(f"hold {number} is not on table {name}")
            self._holder.release(connection, number, by=request.requester)
            return f"hold {number} is released"
        until = None if given.get("until") is None else read_instant(str(given["until"]), "until")
        where, reason = given.get("where"), given.get("reason")
        table = self._engine.describe(connection, name)
        placed = self._holder.place(connection, table, where=where, until=until, reason=reason, by=request.requester)
        return f"hold {placed.id} keeps {placed.rows}"

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


def _refuse_unknown(request: ClientRequest) -> None:
    """A row that no function or procedure has written may say anything."""
    known = ARGUMENTS.get(request.command)
    if known is None:
        raise UsageError(f"there is no command {request.command!r}")
    for name in request.arguments:
        if name not in known:
            raise UsageError(f"{request.command} has no argument {name!r}")


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
