"""Runs statements: TTL ones by way of the catalog, all others as they were typed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import DBAPIError

from lapse.app.nearby import suggesting_tables
from lapse.app.result import Result, Stream
from lapse.catalog import Catalog, jobs, settings
from lapse.catalog.policies import StoredPolicy
from lapse.errors import LapseError, NotPermitted, PolicyConflict, TableNotFound, Unsupported, ZoneMissing
from lapse.model import settings as setting_model
from lapse.model.policy import Policy, PolicyChange
from lapse.model.statement import (
    AlterColumn,
    AlterTable,
    CatalogQuery,
    ControlJob,
    CreateTable,
    DropTable,
    PassThrough,
    PlaceHold,
    ReleaseHold,
    RelOptions,
    RenameTable,
    SetGlobal,
    Show,
    ShowCreateTable,
    ShowHolds,
    ShowList,
    Statement,
    Variable,
)
from lapse.model.table import TableName

if TYPE_CHECKING:
    from lapse.app.control import Control
    from lapse.app.firstrun import FirstRun
    from lapse.app.renames import Mover
    from lapse.runner.jobs import JobKeeper
    from lapse.runner.policy_manager import PolicyManager

Parameters = Sequence[Any] | Mapping[str, Any] | None

DECLARERS = "declaring a policy takes the rights of the table's owner: docs/security.md and docs/mariadb.md list them"
_VIEWS = {Show.SCHEDULES: "lapse_schedules", Show.JOBS: "lapse_jobs"}


class Frontend:
    """What TTL statements need is loaded with the first of them; other statements need none of it."""

    def __init__(self, catalog: Catalog, keeper: Callable[[], JobKeeper]) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._keeper = keeper

    @cached_property
    def _manager(self) -> PolicyManager:
        from lapse.runner.policy_manager import PolicyManager

        return PolicyManager(self._catalog)

    @cached_property
    def _mover(self) -> Mover:
        from lapse.app.renames import Mover

        return Mover(self._catalog, self._manager)

    @cached_property
    def _control_of_policies(self) -> Control:
        from lapse.app.control import Control

        return Control(self._catalog, self._keeper())

    @cached_property
    def _first_run(self) -> FirstRun:
        from lapse.app.firstrun import FirstRun

        return FirstRun(self._catalog)

    def execute(self, connection: Connection, statement: Statement, parameters: Parameters = None) -> Result:
        self._catalog.look_again()
        if isinstance(statement, CreateTable):
            with self._as_declarer(connection, statement.table, creates=True):
                return self._execute(connection, statement, parameters)
        if isinstance(statement, AlterTable | AlterColumn | ShowCreateTable | PlaceHold):
            table = statement.table
            with suggesting_tables(self._engine, connection, table), self._as_declarer(connection, table):
                return self._execute(connection, statement, parameters)
        return self._execute(connection, statement, parameters)

    @contextmanager
    def _as_declarer(self, connection: Connection, table: TableName, *, creates: bool = False) -> Iterator[None]:
        """What is refused for want of a right is refused with what a declarer needs, not with what a worker does."""
        try:
            yield
        except NotPermitted as error:
            if self._engine.in_transaction(connection):
                raise
            with self._engine.errors():
                grants = self._engine.declarer_grants(connection, table, creates=creates)
            raise NotPermitted(error.message, hint=grants or DECLARERS) from error

    def _execute(self, connection: Connection, statement: Statement, parameters: Parameters) -> Result:
        with self._engine.errors():
            match statement:
                case PassThrough():
                    return self._run(connection, statement.text, parameters)
                case CreateTable():
                    return self._create(connection, statement, parameters)
                case AlterTable():
                    return self._alter(connection, statement, parameters)
                case DropTable():
                    return self._drop(connection, statement)
                case RenameTable():
                    return self._rename(connection, statement)
                case AlterColumn() if statement.may_remove_ttl and not self._has_column(connection, statement):
                    change = PolicyChange(set={}, remove=True)
                    return self._alter(connection, AlterTable(text="", table=statement.table, change=change), None)
                case AlterColumn():
                    with self._engine.bookkeeping(connection):
                        self._manager.refuse_column_change(connection, statement.table, statement.actions)
                    return self._run(connection, statement.text, parameters)
                case ShowCreateTable():
                    return self._show_create(connection, statement.table)
                case ShowList():
                    return self._run_catalog(connection, f"SELECT * FROM {self._view(_VIEWS[statement.what])}", None)
                case CatalogQuery() if self._asks_the_server(statement):
                    return self._run(connection, self._query_text(connection, statement), parameters)
                case CatalogQuery():
                    return self._run_catalog(connection, self._query_text(connection, statement), parameters)
                case ControlJob():
                    return self._control(connection, statement)
                case PlaceHold():
                    return self._hold(connection, statement)
                case ReleaseHold():
                    self._refuse_in_transaction(connection)
                    self._control_of_policies.release(statement.hold_id)
                    return Result(rowcount=1)
                case ShowHolds():
                    return self._show_holds()
                case SetGlobal():
                    return self._set(connection, statement)

    def _create(self, connection: Connection, statement: CreateTable, parameters: Parameters) -> Result:
        if statement.temporary:
            raise Unsupported(f"{statement.table} is a temporary table: TTL is not supported on temporary tables")
        # A contradiction in the policy itself is found before anything is created.
        statement.change.apply_to(None, str(statement.table))
        if statement.if_not_exists and self._exists(connection, statement.table):
            notice = f"table {statement.table} exists already; nothing was changed, its TTL included"
            return Result(rowcount=0, notices=(notice,))
        with self._engine.atomic(connection):
            replaced = self._stored(connection, [statement.table] if statement.replaces else [])
            self._run(connection, statement.text, parameters)
            with self._engine.bookkeeping(connection):
                self._forget(connection, replaced)
                try:
                    notices = self._manager.change(connection, statement.table, statement.change)
                except (LapseError, DBAPIError) as error:
                    self._undo_create(connection, statement)
                    if isinstance(error, ZoneMissing):
                        zone = error.zone or "Area/City"
                        hint = f"add WITH (ttl_time_zone = '{zone}') to it, or 'UTC' if they are in UTC"
                        raise ZoneMissing(error.message, zone=error.zone, hint=hint) from error
                    raise
        return Result(rowcount=0, notices=(*notices, *self._look_ahead(connection, statement.table, None)))

    def _look_ahead(self, connection: Connection, name: TableName, before: Policy | None) -> tuple[str, ...]:
        """What the first run will do. What a transaction has not committed, another connection does not see."""
        if self._engine.in_transaction(connection):
            return ()
        try:
            with self._engine.bookkeeping(connection):
                full = self._engine.full_name(connection, name)
        except LapseError:
            # The statement has renamed it, or another session has dropped it.
            return ()
        return self._first_run.notices(full, before)

    def _undo_create(self, connection: Connection, statement: CreateTable) -> None:
        """Where a rollback would leave the new table. With IF NOT EXISTS it might be another session's, so it stays."""
        if not self._engine.features.transactional_ddl and not statement.if_not_exists:
            with suppress(LapseError), self._engine.errors():
                self._engine.discard(connection, statement.table)

    def _alter(self, connection: Connection, statement: AlterTable, parameters: Parameters) -> Result:
        if statement.if_exists and not self._exists(connection, statement.table):
            return Result(rowcount=0, notices=(f"table {statement.table} does not exist; nothing was changed",))
        if not statement.change.remove:
            with self._engine.bookkeeping(connection):
                self._manager.refuse_column_change(connection, statement.table, statement.actions)
        with self._engine.declaring(connection, statement.table):
            known = self._stored(connection, [statement.table])
            notices: tuple[str, ...] = ()
            if statement.change.remove:
                # The policy goes first: the rest of the statement may drop what it depends on.
                notices = self._change(connection, statement)
            if statement.text:
                self._run(connection, statement.text, parameters)
            if not statement.change.remove:
                notices = self._change(connection, statement)
        if not statement.change.remove:
            before = known[0].policy if known else None
            notices += self._look_ahead(connection, statement.table, before)
        return Result(rowcount=0, notices=notices)

    def _change(self, connection: Connection, statement: AlterTable) -> tuple[str, ...]:
        with self._engine.bookkeeping(connection):
            return self._manager.change(connection, statement.table, statement.change)

    def _drop(self, connection: Connection, statement: DropTable) -> Result:
        with self._engine.atomic(connection):
            known = self._stored(connection, statement.tables)
            result = self._run(connection, statement.text, None)
            if known:
                with self._engine.bookkeeping(connection):
                    gone = [each for each in known if statement.replaced or not self._is_there(connection, each.table)]
                    self._forget(connection, gone)
        return result

    def _stored(self, connection: Connection, names: Sequence[TableName]) -> list[StoredPolicy]:
        if not names:
            return []
        with self._engine.bookkeeping(connection):
            there = [name for name in names if self._is_there(connection, name)]
            found = [self._manager.stored(connection, name) for name in there]
        return [stored for stored in found if stored is not None]

    def _forget(self, connection: Connection, gone: Sequence[StoredPolicy]) -> None:
        for stored in gone:
            self._engine.dropped(connection, stored.table)
            self._manager.forget(self._catalog.bind(connection), stored, "the table was dropped")

    def _rename(self, connection: Connection, statement: RenameTable) -> Result:
        with self._engine.atomic(connection):
            with self._engine.bookkeeping(connection):
                self._manager.refuse_column_change(connection, statement.renames[0][0], statement.actions)
                moves = self._mover.follow(connection, statement.renames)
            result = self._run(connection, statement.text, None)
            if moves:
                with self._engine.bookkeeping(connection):
                    self._mover.move(connection, moves)
        return result

    def _show_create(self, connection: Connection, name: TableName) -> Result:
        with self._engine.bookkeeping(connection):
            table = self._engine.describe(connection, name)
            stored = self._manager.stored(connection, table.name)
        text = self._engine.create_statement(connection, table)
        if stored is not None:
            from lapse.ddl.render import render

            text += " " + render(stored.policy, table.name, "lapse", kind="create-suffix")
        return Result(columns=("table_name", "create_statement"), rows=((table.name.name, text),), rowcount=1)

    def _control(self, connection: Connection, statement: ControlJob) -> Result:
        self._require(connection)
        with self._engine.atomic(connection), self._engine.bookkeeping(connection):
            now = self._engine.now(connection)
            jobs.request(self._catalog.bind(connection), statement.job_id, statement.action, now)
        if not self._engine.in_transaction(connection):
            self._keeper().settle(statement.job_id)
        return Result(rowcount=1)

    def _hold(self, connection: Connection, statement: PlaceHold) -> Result:
        self._refuse_in_transaction(connection)
        with self._engine.bookkeeping(connection):
            # By the path of the user's own session.
            name = self._engine.full_name(connection, statement.table)
        placed = self._control_of_policies.hold(
            name, where=statement.where, until=statement.until, reason=statement.reason
        )
        return Result(columns=("hold",), rows=((placed.id,),), rowcount=1)

    def _refuse_in_transaction(self, connection: Connection) -> None:
        """A hold begins and ends at once, in a transaction of its own."""
        if self._engine.in_transaction(connection):
            raise PolicyConflict("holds are placed and released outside of a transaction", hint="COMMIT first")

    def _show_holds(self) -> Result:
        rows = tuple(
            (each.id, str(each.table), each.where, each.until, each.reason, each.placed_at, each.placed_by)
            for each in self._control_of_policies.holds_on()
        )
        columns = ("hold", "table_name", "where", "until", "reason", "placed_at", "placed_by")
        return Result(columns=columns, rows=rows, rowcount=len(rows))

    def _set(self, connection: Connection, statement: SetGlobal) -> Result:
        if self._engine.has_setting(statement.name):
            return self._run(connection, statement.text, None)
        setting_model.normalise(statement.name, statement.value)
        with self._engine.atomic(connection), self._engine.bookkeeping(connection):
            bound = self._catalog.bind(connection)
            self._catalog.ensure(bound)
            settings.save_setting(bound, statement.name, statement.value, self._engine.now(connection))
        return Result(rowcount=0)

    def _asks_the_server(self, statement: CatalogQuery) -> bool:
        """Is there nothing in it but variables of the server's own, which have names like Lapse's settings?"""
        found = [piece for piece in statement.pieces if not isinstance(piece, str)]
        return all(isinstance(piece, Variable) and self._engine.has_setting(piece.name) for piece in found)

    def _query_text(self, connection: Connection, statement: CatalogQuery) -> str:
        parts = []
        for piece in statement.pieces:
            match piece:
                case Variable(name=name) if self._engine.has_setting(name):
                    parts.append(f"@@global.{name}")
                case Variable(name=name):
                    parts.append("'" + self._setting_text(connection, name).replace("'", "''") + "'")
                case RelOptions():
                    parts.append(self._view("lapse_reloptions"))
                case Show():
                    parts.append(self._view(_VIEWS[piece]))
                case str():
                    parts.append(piece)
        return "".join(parts)

    def _setting_text(self, connection: Connection, name: str) -> str:
        setting = setting_model.find(name)
        with self._engine.bookkeeping(connection):
            bound = self._catalog.bind(connection)
            stored = settings.stored_texts(bound) if self._catalog.is_installed(bound) else {}
        return stored.get(setting.name, setting.default)

    def _view(self, name: str) -> str:
        return f"{self._engine.catalog_schema}.{name}" if self._engine.catalog_schema else name

    def _run_catalog(self, connection: Connection, text: str, parameters: Parameters) -> Result:
        self._require(connection)
        return self._run(connection, text, parameters)

    def _has_column(self, connection: Connection, statement: AlterColumn) -> bool:
        """Where there is no such table either, the database says so, or passes over it."""
        with self._engine.bookkeeping(connection):
            if not self._is_there(connection, statement.table):
                return True
            return self._engine.describe(connection, statement.table).column(statement.actions[0][1]) is not None

    def _require(self, connection: Connection) -> None:
        """A catalog that only the user's transaction can see is looked for there, else on Lapse's own connection."""
        if self._engine.in_transaction(connection):
            with self._engine.bookkeeping(connection):
                self._catalog.require(connection)
        else:
            with self._catalog.reading():
                pass

    def _exists(self, connection: Connection, name: TableName) -> bool:
        with self._engine.bookkeeping(connection):
            return self._is_there(connection, name)

    def _is_there(self, connection: Connection, name: TableName) -> bool:
        try:
            self._engine.full_name(connection, name)
        except TableNotFound:
            return False
        return True

    def stream(self, connection: Connection, statement: Statement) -> Stream:
        """As `execute`; the rows of a statement that is not about TTL are fetched as they are asked for."""
        if not isinstance(statement, PassThrough):
            return self.execute(connection, statement).stream()
        with self._engine.errors():
            cursor = connection.exec_driver_sql(statement.text)
        if not cursor.returns_rows:
            return Result(rowcount=cursor.rowcount).stream()
        return Stream(columns=tuple(cursor.keys()), rows=self._fetched(cursor), rowcount=-1)

    def _fetched(self, cursor: CursorResult[Any]) -> Iterator[tuple[Any, ...]]:
        with self._engine.errors():
            for row in cursor:
                yield tuple(row)

    @staticmethod
    def _run(connection: Connection, text: str, parameters: Parameters) -> Result:
        cursor = connection.exec_driver_sql(text, parameters)
        if not cursor.returns_rows:
            return Result(rowcount=cursor.rowcount)
        rows = tuple(tuple(row) for row in cursor)
        return Result(columns=tuple(cursor.keys()), rows=rows, rowcount=len(rows))
