"""One way to write parameters on every engine: `%(name)s` or `%s`, which psycopg and PyMySQL read by themselves.

sqlite3 reads `?` and `:name`. A statement for it that has one of those is left alone, and so is one without parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lapse.dbapi.exceptions import ProgrammingError
from lapse.ddl.lexer import TokenKind, scan

Parameters = Sequence[Any] | Mapping[str, Any]

_MARK = re.compile(r"%(?:(?P<percent>%)|(?P<next>s)|\((?P<name>[^)]*)\)s)?")
_OF_SQLITE = frozenset("?:@$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """`names` are those of the parameters in the order of the text, None where they come in order by themselves."""

    text: str
    names: tuple[str, ...] | None = None

    def arranged(self, parameters: Parameters) -> Parameters:
        if self.names is None:
            return parameters
        if not isinstance(parameters, Mapping):
            raise ProgrammingError("the statement names its parameters: give a mapping")
        try:
            return tuple(parameters[name] for name in self.names)
        except KeyError as error:
            raise ProgrammingError(f"there is no value for the parameter {error.args[0]!r}") from error


def for_sqlite(operation: str) -> Statement:
    """A statement that is executed with parameters, as sqlite3 reads it."""
    if "%" not in operation:
        return Statement(text=operation)
    tokens = list(scan(operation, "sqlite"))
    if any(kind is TokenKind.PUNCTUATION and part in _OF_SQLITE for kind, part, _ in tokens):
        return Statement(text=operation)
    quoted = [
        range(start, start + len(part))
        for kind, part, start in tokens
        if kind in (TokenKind.STRING, TokenKind.QUOTED, TokenKind.COMMENT)
    ]
    names: list[str | None] = []

    def replaced(match: re.Match[str]) -> str:
        if match["percent"]:
            return "%"
        if match[0] == "%":
            raise ProgrammingError("a % that is no parameter", hint="write %% in a statement that has parameters")
        if any(match.start() in span for span in quoted):
            raise ProgrammingError(f"the parameter {match[0]} stands in quotes or in a comment")
        names.append(match["name"])
        return "?"

    text = _MARK.sub(replaced, operation)
    named = tuple(name for name in names if name is not None)
    if named and len(named) < len(names):
        raise ProgrammingError("parameters with and without a name in one statement")
    return Statement(text=text, names=named or None)
