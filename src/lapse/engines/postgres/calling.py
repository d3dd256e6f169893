"""Calling a table's batch function, and making sure that nothing but it has run.

A table's owner may change its function at any moment, and what the function or a trigger does to the session lasts.
So, where the owner is another role than this one: the function is the same before and after the call; nothing is left
that would run at the commit with this role's rights (deferred triggers before PostgreSQL 18, cursors WITH HOLD); the
search path is set again in the message of the call; and the session is discarded before it is used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.buckets import bucket
from lapse.engines.postgres import condition, inspect, reads
from lapse.engines.postgres.inspect import Heap, rows
from lapse.engines.postgres.names import BATCH_FUNCTION, literal, quote, relation
from lapse.engines.postgres.reads import Parts, Read
from lapse.engines.postgres.session import DEFAULT_PATH, FOREIGN_CODE, POOLED, SAFELY, send
from lapse.engines.postgres.times import stamp
from lapse.errors import Blocked, Drift, NotPermitted
from lapse.model.blocked import BlockCode
from lapse.model.table import TableName

CHECKPOINT_LOCK_MS = 1_000
CHECKPOINT_LOCKS = f"; SET LOCAL lock_timeout = {CHECKPOINT_LOCK_MS}"
"""Said with a call that deletes: the checkpoint that follows may wait a moment for a heartbeat to commit, but no longer
than that, as the rows of the batch are locked meanwhile."""

NOTHING_HELD = "ARRAY[]::pg_catalog.oid[]"

_FIND = """
    SELECT c.oid AS part, p.oid AS function, pg_catalog.quote_ident(n.nspname) AS schema, p.proname AS name,
           p.xmin::text AS version, pg_catalog.pg_get_userbyid(c.relowner) AS owner, r.oid = c.relowner AS is_own,
           pg_catalog.pg_get_userbyid(p.proowner) AS function_owner,
           pg_catalog.substring(p.prosrc, '-- lapse: ([0-9a-f= ]+)') AS marks,
           pg_catalog.strpos(p.prosrc, %(expiry)s) > 0 AS knows_expiry,
           r.rolsuper AND NOT o.rolsuper AS is_above, pg_catalog.current_setting('server_version_num')::int AS server,
           pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
             AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS may
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_roles r ON r.rolname = current_user
      JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
      LEFT JOIN pg_catalog.pg_class t ON t.oid = pg_catalog.to_regclass(%(root)s)
      LEFT JOIN (pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace)
        ON p.proname = %(prefix)s || t.oid AND p.proowner = t.relowner AND p.prosecdef AND p.pronargs = 7
     WHERE c.oid = pg_catalog.to_regclass(%(part)s)"""

_AFTER = """
    SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_proc p
                    WHERE p.oid = %(function)s AND p.xmin::text = %(version)s) AS same,
           EXISTS (SELECT 1 FROM pg_catalog.pg_cursors c WHERE c.is_holdable) AS cursors,
           %(server)s < 180000 AND EXISTS (
               SELECT 1 FROM pg_catalog.pg_locks l
                 JOIN pg_catalog.pg_trigger t ON t.tgrelid = l.relation AND t.tgdeferrable
                 JOIN pg_catalog.pg_proc f ON f.oid = t.tgfoid
                  AND f.pronamespace <> 'pg_catalog'::pg_catalog.regnamespace
                WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation'
                  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d
                                     WHERE d.datname = pg_catalog.current_database())) AS deferred"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFunction:
    """The function for one physical table, `part`. `is_own`: this role owns table and function. `mark` tells what
    its rows expire by; `knows_expiry`, whether also after as long as was asked for."""

    part: int
    function: int
    name: str
    version: str
    owner: str
    is_own: bool
    server: int
    mark: str
    knows_expiry: bool

    def call(self, connection: Connection, text: str, *, begin: str = "", then: str = "") -> Any:
        """The function's answer to a call that `message` made, inside the caller's transaction, or in one that `begin`
        opens in the same message."""
        if not self.is_own:
            if connection.info.get(POOLED):
                raise Blocked(
                    BlockCode.PRIVILEGE,
                    f"the table belongs to {self.owner}, and what its triggers leave behind would stay in a session"
                    " that a pooler lends to others",
                    hint="connect workers to the server itself, or let the pooler lend whole sessions",
                )
            connection.info[FOREIGN_CODE] = True
        found = send(connection, f"{begin}{text} FROM {self.path(connection)}; {SAFELY}{then}")
        if not self.is_own:
            self._check(connection)
        return found

    @staticmethod
    def path(connection: Connection) -> str:
        """SQL that a call reads from: triggers of the owner's see the search path that any session of this role has;
        the call itself needs none."""
        return f"pg_catalog.set_config('search_path', {literal(connection.info[DEFAULT_PATH])}, true)"

    def message(
        self,
        operation: str,
        moments: Sequence[tuple[datetime, str | None]],
        *,
        numbers: Sequence[int] = (),
        places: Sequence[str | None] = (),
        holding: Sequence[int] = (),
    ) -> str:
        """A call as SQL; `moments` are cutoffs with their thresholds."""
        return self.call_with(
            operation,
            moments=_array([moment(cutoff) for cutoff, _ in moments], "timestamptz"),
            thresholds=_array([threshold for _, threshold in moments], "text"),
            numbers=_array([str(number) for number in numbers], "int8"),
            places=_array(places, "text"),
            holding=_array([str(oid) for oid in holding], "oid"),
        )

    def call_with(
        self, operation: str, *, moments: str, thresholds: str, numbers: str, places: str, holding: str = NOTHING_HELD
    ) -> str:
        """A call whose arguments are SQL. Every one has its exact type, so a function of the same name with others is
        never taken for this one."""
        first = f"{literal(operation)}::pg_catalog.text, {self.part}::pg_catalog.oid"
        return f"SELECT {self.name}({first}, {moments}, {thresholds}, {numbers}, {places}, {holding})"

    @property
    def unsound(self) -> str:
        """SQL that is true where a call of another role's function has not left everything as it was; see `_check`."""
        values = {"function": self.function, "version": self.version, "server": self.server}
        return f"(SELECT NOT a.same OR a.cursors OR a.deferred FROM ({inspect.filled(_AFTER, values)}) a)"

    def _check(self, connection: Connection) -> None:
        values = {"function": self.function, "version": self.version, "server": self.server}
        (found,) = rows(connection, _AFTER, values)
        if not found["same"]:
            raise Blocked(
                BlockCode.PARTS_MISSING,
                f"the batch function {self.name} was changed while a job used it",
                hint="lapse doctor URL --repair, as the owner of the table",
            )
        if found["cursors"]:
            raise Blocked(BlockCode.UNSUPPORTED, f"a trigger of {self.owner}'s opens a cursor WITH HOLD")
        if found["deferred"]:
            raise Blocked(
                BlockCode.UNSUPPORTED,
                "deleting from this table changes one that has a deferrable constraint trigger, which PostgreSQL"
                f" before 18 runs with the rights of the worker instead of {self.owner}'s",
                hint=f"run a worker as {self.owner}, or make the trigger NOT DEFERRABLE",
            )


def moment(cutoff: datetime) -> str:
    return f"{stamp(cutoff.astimezone(UTC))}+00"


def find(connection: Connection, name: TableName, expiry: str = "") -> BatchFunction | None:
    """The function of a physical table, if this role may execute it; `expiry` may be a part of its text.

    Raises Blocked where a superuser would run what another role has written, and Drift where there is no such table.
    """
    (found,) = inspect.together(connection, _query(name, expiry))
    return _function_of(name, found)


def _query(name: TableName, expiry: str = "") -> inspect.Asked:
    root = TableName(name.name, name.schema)
    return _FIND, {"prefix": BATCH_FUNCTION, "root": relation(root), "part": relation(name), "expiry": expiry}


def _function_of(name: TableName, found: Sequence[Mapping[str, Any]]) -> BatchFunction | None:
    root = TableName(name.name, name.schema)
    for row in found:
        if row["function"] is None or not row["may"]:
            return None
        if row["function_owner"] != row["owner"]:
            raise Blocked(
                BlockCode.PRIVILEGE,
                f"partition {name.partition} belongs to {row['owner']} and table {root} to {row['function_owner']}",
                hint=f"ALTER TABLE {relation(name)} OWNER TO {quote(str(row['function_owner']))};",
            )
        if row["is_above"]:
            raise Blocked(
                BlockCode.PRIVILEGE,
                f"table {name} belongs to {row['owner']}, and this role is a superuser, whose rights its triggers must"
                " not come near",
                hint=f"run workers as {row['owner']}, or as a role that `lapse doctor` lists the grants for",
            )
        return BatchFunction(
            part=row["part"],
            function=row["function"],
            name=f"{row['schema']}.{quote(str(row['name']))}",
            version=row["version"],
            owner=str(row["owner"]),
            is_own=bool(row["is_own"]),
            server=row["server"],
            mark=_mark(str(row["marks"] or ""), name.partition),
            knows_expiry=bool(row["knows_expiry"]),
        )
    what = f"partition {name.partition} of table {root}" if name.partition else name
    raise Drift(f"{what} does not exist any more")


def _mark(marks: str, partition: str | None) -> str:
    """Of a partition with a rule of its own, or of the whole table."""
    own = f"{condition.partition_mark(partition)}=" if partition is not None else "="
    special = [each.removeprefix(own) for each in marks.split() if each.startswith(own)]
    common = [each for each in marks.split() if "=" not in each]
    return next(iter([*special, *common]), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFacts:
    """Of a physical table: its function, if this role may execute it, and what matters for deleting."""

    function: BatchFunction | None
    heap: Heap


def facts(connection: Connection, declared: BoundPolicy) -> TableFacts:
    """In one message. Raises as `find` does."""
    name = declared.table.name
    heap, functions = inspect.together(connection, inspect.heap_query(name), _query(name, _expiry(declared)))
    return TableFacts(function=_function_of(name, functions), heap=inspect.heap_of(name, heap))


def _expiry(declared: BoundPolicy) -> str:
    """How a function that knows when rows expire says so."""
    return literal(condition.template(declared).instant)


def require(declared: BoundPolicy, known: TableFacts) -> tuple[BatchFunction, Heap]:
    """The function of a physical table, and what matters for deleting there."""
    table, found, shape = declared.table, known.function, known.heap
    if found is None:
        raise Blocked(
            BlockCode.PRIVILEGE,
            f"this role may not execute the batch function of table {table.name}",
            hint="`lapse doctor` prints the GRANT that is missing",
        )
    return found, shape


def read(
    connection: Connection,
    declared: BoundPolicy,
    cutoffs: Sequence[datetime],
    what: Read,
    *,
    limit: int = 0,
    percent: float | None = None,
    known: TableFacts | None = None,
    before: str = "",
    after: str = "",
) -> Any:
    """What a statement of `reads` says about a physical table, inside the caller's transaction.

    By the table's batch function, so that nothing of the table's owner runs with this role's rights; where this role
    may not execute one, as before a policy is declared, with this role's own right to read. `before` and `after` are
    statements that are said in the message of the look.
    """
    function = known.function if known is not None else find(connection, declared.table.name, _expiry(declared))
    if function is not None and function.is_own and not function.knows_expiry:
        function = None
    if function is not None and function.mark != condition.mark(declared):
        if not function.is_own:
            raise NotPermitted(
                f"table {declared.table.name} is seen through its batch function, which knows its own policy alone",
                hint=f"look at other policies as {function.owner}",
            )
        function = None
    if function is not None:
        moments = [(cutoff, condition.threshold(declared, cutoff)) for cutoff in cutoffs]
        places = [] if percent is None else [f"{percent:.6f}"]
        text = function.message(what, moments, numbers=[limit], places=places)
        found = function.call(connection, text, begin=before, then=after)
        return found if function.knows_expiry else reads.without_times(what, found)
    conditions = [condition.at(declared, cutoff) for cutoff in cutoffs]
    parts = Parts(
        table=relation(declared.table.name),
        expired=conditions[0].sql,
        expiry=conditions[0].instant,
        column=quote(conditions[0].column or ""),
        buckets=bucket([each.sql for each in conditions]),
        limit=str(limit),
        sample="" if percent is None else reads.tablesample(f"{percent:.6f}"),
    )
    return send(connection, f"{before}{reads.statement(what, parts)}{after}")


def _array(texts: Sequence[str | None], kind: str) -> str:
    values = ", ".join("NULL" if text is None else literal(text) for text in texts)
    return f"ARRAY[{values}]::pg_catalog.{kind}[]"
