"""One connection on which statements run one after another, TTL ones included."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any

from lapse import ddl
from lapse.app.frontend import Frontend, Parameters
from lapse.app.result import Result, Stream
from lapse.ddl.script import is_complete
from lapse.engines.base import Engine
from lapse.model.statement import PassThrough, Statement


class Session:
    """Each statement commits by itself unless a transaction was begun; `close` rolls back what is still open.

    SQL mode, zone, isolation and timeouts are what the server gives to any client.
    """

    def __init__(self, engine: Engine, frontend: Frontend) -> None:
        self._engine = engine
        self._frontend = frontend
        with engine.errors():
            self._connection = engine.user_connection()
        self.raw: Any = self._connection.connection.driver_connection
        """The driver's own connection."""

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection.closed:
            return
        # A connection that is lost has nothing left to roll back.
        with suppress(Exception):
            if self.in_transaction:
                self.raw.rollback()
        with self._engine.errors():
            self._connection.close()

    @property
    def dialect(self) -> str:
        """How the `ddl` layer reads the engine's SQL: sqlite, postgres, mysql."""
        return self._engine.dialect

    @property
    def in_transaction(self) -> bool:
        return self._engine.in_transaction(self._connection)

    def set_autocommit(self, value: bool) -> None:
        """False: statements belong to a transaction that the user ends, as PEP 249 has it."""
        self._engine.set_autocommit(self.raw, value)

    def begin(self, verb: str) -> None:
        """Open a transaction for a statement that begins with `verb`, where none is open and it may have one."""
        self._engine.begin_implicitly(self.raw, verb)

    def parse(self, sql: str) -> list[Statement]:
        """The statements of a text; what is only a comment is left out."""
        statements = ddl.parse(sql, self._engine.dialect)
        if len(statements) == 1 and isinstance(statements[0], PassThrough) and statements[0].verb:
            return statements
        return [each for each in statements if not (isinstance(each, PassThrough) and _is_comment(each))]

    def execute(self, statement: Statement, parameters: Parameters = None) -> Result:
        return self._frontend.execute(self._connection, statement, parameters)

    def stream(self, statement: Statement) -> Stream:
        """As `execute`, with rows that are fetched as they are asked for."""
        return self._frontend.stream(self._connection, statement)

    def is_complete(self, text: str) -> bool:
        """Does the text end with the `;` of its last statement?"""
        return is_complete(text, self._engine.dialect)


def _is_comment(statement: PassThrough) -> bool:
    return not statement.verb and (not statement.text or statement.text.startswith(("--", "/*", "#")))
