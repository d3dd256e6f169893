"""Connections and cursors as PEP 249 describes them: TTL statements are Lapse's, all others the driver's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from types import TracebackType
from typing import Any

from lapse.app import Lapse, Result, Session
from lapse.dbapi import exceptions
from lapse.dbapi.exceptions import InterfaceError, NotSupportedError, ProgrammingError, raise_translated, translated
from lapse.dbapi.placeholders import Parameters, for_sqlite
from lapse.model.statement import CatalogQuery, PassThrough, Statement


class Connection:
    """`notices` collects what Lapse had to say about TTL statements; clear it at will."""

    Warning = exceptions.Warning
    Error = exceptions.Error
    InterfaceError = exceptions.InterfaceError
    DatabaseError = exceptions.DatabaseError
    DataError = exceptions.DataError
    OperationalError = exceptions.OperationalError
    IntegrityError = exceptions.IntegrityError
    InternalError = exceptions.InternalError
    ProgrammingError = exceptions.ProgrammingError
    NotSupportedError = exceptions.NotSupportedError

    def __init__(self, database: Lapse, *, autocommit: bool = False) -> None:
        self._database = database
        self._autocommit = autocommit
        self.closed = False
        self.notices: list[str] = []
        self.paramstyle: str = database.engine.database.dialect.paramstyle
        try:
            self._session = database.session()
            self._session.set_autocommit(autocommit)
        except BaseException:
            database.close()
            raise

    @property
    def autocommit(self) -> bool:
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        if self.session.in_transaction:
            raise ProgrammingError("autocommit cannot change inside a transaction; commit or roll back first")
        with translated():
            self.session.set_autocommit(value)
        self._autocommit = value

    @property
    def session(self) -> Session:
        if self.closed:
            raise InterfaceError("the connection is closed")
        return self._session

    @property
    def in_transaction(self) -> bool:
        return self.session.in_transaction

    def cursor(self) -> Cursor:
        return Cursor(self)

    def execute(self, operation: str, parameters: Parameters | None = None) -> Cursor:
        """A cursor of its own for one statement."""
        return self.cursor().execute(operation, parameters)

    def commit(self) -> None:
        with translated():
            self.session.raw.commit()

    def rollback(self) -> None:
        with translated():
            self.session.raw.rollback()

    def close(self) -> None:
        """Roll back what was not committed and let go of the database."""
        if self.closed:
            return
        self.closed = True
        with translated():
            try:
                self._session.close()
            finally:
                self._database.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or roll back on an error, and close."""
        if self.closed:
            return
        try:
            if kind is None:
                self.commit()
            else:
                self.rollback()
        finally:
            self.close()


class Cursor:
    """Rows of a TTL statement are kept here, those of any other come from the driver's own cursor."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._session = connection.session
        with translated():
            self._raw = self._session.raw.cursor()
        self._closed = False
        self._result: Result | None = None
        self._rows: Iterator[tuple[Any, ...]] = iter(())
        self.arraysize = 1

    def execute(self, operation: str, parameters: Parameters | None = None) -> Cursor:
        self._check_open()
        try:
            if parameters:
                operation, parameters = self._with_parameters(operation, parameters)
            statement = self._statement(operation)
            if isinstance(statement, PassThrough):
                if not self.connection.autocommit:
                    self._session.begin(statement.verb)
                self._result = None
                # Drivers tell an absent argument from an empty one: with none they leave `%` alone.
                if parameters is None:
                    self._raw.execute(operation)
                else:
                    self._raw.execute(operation, parameters)
            else:
                self._run(statement, parameters)
        except Exception as error:
            raise_translated(error)
        return self

    def _with_parameters(self, operation: str, parameters: Parameters) -> tuple[str, Parameters]:
        if self.connection.paramstyle != "qmark":
            return operation, parameters
        translation = for_sqlite(operation)
        return translation.text, translation.arranged(parameters)

    def callproc(self, procname: str, parameters: Sequence[Any] = ()) -> Sequence[Any]:
        """Call a function (PostgreSQL) or procedure (MariaDB, MySQL) of that name; its rows are the result."""
        self._check_open()
        if self._session.dialect == "sqlite":
            raise NotSupportedError("SQLite has no stored procedures")
        if self._session.dialect == "postgres":
            self.execute(f"SELECT * FROM {procname}({', '.join(['%s'] * len(parameters))})", tuple(parameters))
            return parameters
        self._result = None
        with translated():
            self._raw.callproc(procname, parameters)
        return parameters

    def executemany(self, operation: str, parameters: Iterable[Parameters]) -> Cursor:
        self._check_open()
        sets = iter(parameters)
        first = next(sets, None)
        if first is None:
            self._result = Result(rowcount=0)
            return self
        every: Iterable[Parameters] = chain((first,), sets)
        with translated():
            if first and self.connection.paramstyle == "qmark":
                translation = for_sqlite(operation)
                operation, every = translation.text, map(translation.arranged, every)
            statement = self._statement(operation)
            if not isinstance(statement, PassThrough):
                raise NotSupportedError("a TTL statement cannot be executed many times at once")
            if not self.connection.autocommit:
                self._session.begin(statement.verb)
            self._result = None
            self._raw.executemany(operation, list(every))
        return self

    def _statement(self, operation: str) -> Statement:
        statements = self._session.parse(operation)
        if len(statements) == 1:
            return statements[0]
        verb = next((statement.verb for statement in statements if isinstance(statement, PassThrough)), "")
        if all(isinstance(statement, PassThrough) for statement in statements):
            # None of it is Lapse's business; the driver says whether it takes several at a time.
            return PassThrough(text=operation, verb=verb)
        raise ProgrammingError(f"one statement at a time, please: this text has {len(statements)}")

    def _run(self, statement: Statement, parameters: Parameters | None) -> None:
        if parameters and not isinstance(statement, CatalogQuery):
            raise ProgrammingError("a TTL statement takes no parameters", hint="write the values into its text")
        if not self.connection.autocommit:
            self._session.begin("TTL")
        self._result = self._session.execute(statement, parameters or None)
        self._rows = iter(self._result.rows)
        self.connection.notices.extend(self._result.notices)

    @property
    def description(self) -> Sequence[tuple[Any, ...]] | None:
        if self._result is None:
            description: Sequence[tuple[Any, ...]] | None = self._raw.description
            return description
        columns = self._result.columns
        return tuple((column, None, None, None, None, None, None) for column in columns) if columns else None

    @property
    def rowcount(self) -> int:
        return int(self._raw.rowcount) if self._result is None else self._result.rowcount

    @property
    def lastrowid(self) -> int | None:
        """Of the last row inserted, where the driver has one."""
        found: int | None = getattr(self._raw, "lastrowid", None) if self._result is None else None
        return found

    def fetchone(self) -> tuple[Any, ...] | None:
        self._check_rows()
        if self._result is not None:
            return next(self._rows, None)
        try:
            row: tuple[Any, ...] | None = self._raw.fetchone()
        except Exception as error:
            raise_translated(error)
        return row

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        self._check_rows()
        wanted = self.arraysize if size is None else size
        if self._result is not None:
            return [row for row, _ in zip(self._rows, range(wanted), strict=False)]
        with translated():
            return list(self._raw.fetchmany(wanted))

    def fetchall(self) -> list[tuple[Any, ...]]:
        self._check_rows()
        if self._result is not None:
            return list(self._rows)
        with translated():
            return list(self._raw.fetchall())

    def nextset(self) -> bool | None:
        """Go on to the next result of the statement; None where there is none."""
        self._check_open()
        following = getattr(self._raw, "nextset", None)
        if self._result is not None or following is None:
            return None
        with translated():
            return True if following() else None

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Nothing to do: drivers find the sizes themselves."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Nothing to do: drivers find the sizes themselves."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._raw.close()

    def __enter__(self) -> Cursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed")
        if self.connection.closed:
            raise InterfaceError("the connection is closed")

    def _check_rows(self) -> None:
        self._check_open()
        if (self._raw.description if self._result is None else self._result.columns or None) is None:
            raise ProgrammingError("the last statement returned no rows to fetch")
