"""Runs statements: TTL ones by way of the catalog, all others as they were typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import DBAPIError

from lapse.app.result import Result
from lapse.catalog import Catalog, jobs, policies, settings
from lapse.ddl import render
from lapse.errors import LapseError, TableNotFound, Unsupported
from lapse.model import settings as setting_model
from lapse.model.statement import (
    AlterColumn,
    AlterTable,
    CatalogQuery,
    ControlJob,
    CreateTable,
    DropTable,
    PassThrough,
    RelOptions,
    RenameTable,
    SetGlobal,
    Show,
    ShowCreateTable,
    ShowList,
    Statement,
    Variable,
)
from lapse.model.table import TableName
from lapse.runner import declared as declaring
from lapse.runner.declarer import Declarer
from lapse.runner.jobs import JobKeeper

Parameters = Sequence[Any] | Mapping[str, Any] | None

_VIEWS = {Show.SCHEDULES: "lapse_schedules", Show.JOBS: "lapse_jobs"}


class Frontend:
    def __init__(self, catalog: Catalog, keeper: JobKeeper) -> None:
        self._catalog = catalog
        self._engine = catalog.engine
        self._keeper = keeper
        self._declarer = Declarer(catalog)

    def execute(self, connection: Connection, statement: Statement, parameters: Parameters = None) -> Result:
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
                case AlterColumn():
                    self._declarer.refuse_column_change(connection, statement.table, statement.actions)
                    return self._run(connection, statement.text, parameters)
                case ShowCreateTable():
                    return self._show_create(connection, statement.table)
                case ShowList():
                    return self._run_catalog(connection, f"SELECT * FROM {self._view(_VIEWS[statement.what])}", None)
                case CatalogQuery():
                    return self._run_catalog(connection, self._query_text(connection, statement), parameters)
                case ControlJob():
                    return self._control(connection, statement)
                case SetGlobal():
                    return self._set(connection, statement)

    def _create(self, connection: Connection, statement: CreateTable, parameters: Parameters) -> Result:
        if statement.temporary:
            raise Unsupported(f"{statement.table} is a temporary table, and TTL works on lasting ones")
        # A contradiction in the policy itself is found before anything is created.
        statement.change.apply_to(None, str(statement.table))
        if statement.if_not_exists and self._exists(connection, statement.table):
            notice = f"table {statement.table} exists already; nothing was changed, its TTL included"
            return Result(rowcount=0, notices=(notice,))
        with self._engine.atomic(connection):
            self._run(connection, statement.text, parameters)
            try:
                notices = self._declarer.change(connection, statement.table, statement.change)
            except (LapseError, DBAPIError):
                self._undo_create(connection, statement)
                raise
        return Result(rowcount=0, notices=notices)

    def _undo_create(self, connection: Connection, statement: CreateTable) -> None:
        """Where a rollback would leave the new table. With IF NOT EXISTS it might be somebody else's, so it stays."""
        if not self._engine.features.transactional_ddl and not statement.if_not_exists:
            with suppress(LapseError), self._engine.errors():
                self._engine.discard(connection, statement.table)

    def _alter(self, connection: Connection, statement: AlterTable, parameters: Parameters) -> Result:
        if statement.if_exists and not self._exists(connection, statement.table):
            return Result(rowcount=0, notices=(f"table {statement.table} does not exist; nothing was changed",))
        if not statement.change.remove:
            self._declarer.refuse_column_change(connection, statement.table, statement.actions)
        with self._engine.atomic(connection):
            notices: tuple[str, ...] = ()
            if statement.change.remove:
                # The policy goes first: the rest of the statement may drop what it depends on.
                notices = self._declarer.change(connection, statement.table, statement.change)
            if statement.text:
                self._run(connection, statement.text, parameters)
            if not statement.change.remove:
                notices = self._declarer.change(connection, statement.table, statement.change)
        return Result(rowcount=0, notices=notices)

    def _drop(self, connection: Connection, statement: DropTable) -> Result:
        with self._engine.atomic(connection):
            known = [self._declarer.stored(connection, name) for name in statement.tables]
            result = self._run(connection, statement.text, None)
            for stored in known:
                if stored is not None and not self._exists(connection, stored.table):
                    self._engine.dropped(connection, stored.table)
                    self._declarer.forget(self._catalog.bind(connection), stored, "the table was dropped")
        return result

    def _rename(self, connection: Connection, statement: RenameTable) -> Result:
        self._declarer.refuse_column_change(connection, statement.renames[0][0], statement.actions)
        with self._engine.atomic(connection):
            known = [(self._declarer.stored(connection, old), new) for old, new in statement.renames]
            result = self._run(connection, statement.text, None)
            for stored, new in known:
                if stored is None:
                    continue
                table = self._engine.describe(connection, TableName(new.name, new.schema or stored.table.schema))
                policies.rename_policy(self._catalog.bind(connection), stored.id, table.name)
                self._engine.renamed(connection, stored.table, declaring.declare(table, stored.policy))
        return result

    def _show_create(self, connection: Connection, name: TableName) -> Result:
        table = self._engine.describe(connection, name)
        text = self._engine.create_statement(connection, table)
        stored = self._declarer.stored(connection, table.name)
        if stored is not None:
            text += " " + render(stored.policy, table.name, "lapse", kind="create-suffix")
        return Result(columns=("table_name", "create_statement"), rows=((table.name.name, text),), rowcount=1)

    def _control(self, connection: Connection, statement: ControlJob) -> Result:
        self._catalog.require(connection)
        with self._engine.atomic(connection):
            now = self._engine.now(connection)
            jobs.request(self._catalog.bind(connection), statement.job_id, statement.action, now)
        if not self._engine.in_transaction(connection):
            self._keeper.settle(statement.job_id)
        return Result(rowcount=1)

    def _set(self, connection: Connection, statement: SetGlobal) -> Result:
        setting_model.normalise(statement.name, statement.value)
        with self._engine.atomic(connection):
            bound = self._catalog.bind(connection)
            self._catalog.ensure(bound)
            settings.save_setting(bound, statement.name, statement.value, self._engine.now(connection))
        return Result(rowcount=0)

    def _query_text(self, connection: Connection, statement: CatalogQuery) -> str:
        parts = []
        for piece in statement.pieces:
            match piece:
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
        bound = self._catalog.bind(connection)
        stored = settings.stored_texts(bound) if self._catalog.is_installed(bound) else {}
        return stored.get(setting.name, setting.default)

    def _view(self, name: str) -> str:
        return f"{self._engine.catalog_schema}.{name}" if self._engine.catalog_schema else name

    def _run_catalog(self, connection: Connection, text: str, parameters: Parameters) -> Result:
        self._catalog.require(connection)
        return self._run(connection, text, parameters)

    def _exists(self, connection: Connection, name: TableName) -> bool:
        try:
            self._engine.describe(connection, name)
        except TableNotFound:
            return False
        return True

    @staticmethod
    def _run(connection: Connection, text: str, parameters: Parameters) -> Result:
        cursor = connection.exec_driver_sql(text, parameters)
        return _collect(cursor)


def _collect(cursor: CursorResult[Any]) -> Result:
    if not cursor.returns_rows:
        return Result(rowcount=cursor.rowcount)
    columns = tuple(cursor.keys())
    rows = tuple(tuple(row) for row in cursor)
    return Result(columns=columns, rows=rows, rowcount=len(rows))
