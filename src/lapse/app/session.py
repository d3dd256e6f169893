"""One connection on which statements run one after another, TTL ones included."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from lapse import ddl
from lapse.app.frontend import Frontend, Parameters
from lapse.app.result import Result
from lapse.ddl.script import is_complete
from lapse.engines.base import Engine
from lapse.model.statement import PassThrough, Statement


class Session:
    """Each statement commits by itself unless a transaction was begun; `close` rolls back what is still open."""

    def __init__(self, engine: Engine, frontend: Frontend) -> None:
        self._engine = engine
        self._frontend = frontend
        with engine.errors():
            self._connection = engine.database.connect().execution_options(isolation_level="AUTOCOMMIT")
        self.raw: Any = self._connection.connection.driver_connection
        """The driver's own connection."""

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._engine.errors():
            if not self._connection.closed and self.in_transaction:
                self.raw.rollback()
            self._connection.close()

    @property
    def in_transaction(self) -> bool:
        return self._engine.in_transaction(self._connection)

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

    def is_complete(self, text: str) -> bool:
        """Does the text end with the `;` of its last statement?"""
        return is_complete(text, self._engine.dialect)


def _is_comment(statement: PassThrough) -> bool:
    return not statement.verb and (not statement.text or statement.text.startswith(("--", "/*", "#")))
