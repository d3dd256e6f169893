"""A text of SQL cut into statements, with the place each one begins.

Only a `;` that ends a statement cuts: not one in a string, a comment or a dollar quote (the lexer sees to those), nor
one inside the body of a trigger, a routine or an event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lapse.ddl.lexer import SPACES, Kind, Token, tokenize


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One statement: its own bytes without the `;`, comments before and inside it included, spaces around it not.

    `start` and `end` are offsets in `source`, the whole text; so are the positions of the tokens.
    """

    source: str
    dialect: str
    tokens: tuple[Token, ...]

    @property
    def start(self) -> int:
        return self.tokens[0].start

    @property
    def end(self) -> int:
        return self.tokens[-1].end

    @property
    def text(self) -> str:
        return self.source[self.start : self.end].rstrip(SPACES)

    @property
    def first(self) -> Token:
        """The token the statement begins with; a comment only where there is nothing else."""
        return next((t for t in self.tokens if t.kind not in (Kind.COMMENT, Kind.SPACE)), self.tokens[0])

    @property
    def place(self) -> tuple[int, int]:
        return place(self.source, self.first.start)


def place(text: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both from 1."""
    line_start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - line_start + 1


def split(text: str, dialect: str) -> list[Piece]:
    pieces: list[Piece] = []
    for run in _runs(tokenize(text, dialect), dialect):
        tokens = _trimmed(run)
        if tokens:
            pieces.append(Piece(source=text, dialect=dialect, tokens=tuple(tokens)))
    return pieces


def is_complete(text: str, dialect: str) -> bool:
    """Does the text end with the `;` of its last statement, so that what is typed next begins another one?"""
    pieces = split(f"{text}\n{_PROBE}", dialect)
    return ";" in text and pieces[-1].first.start == len(text) + 1


def _runs(tokens: list[Token], dialect: str) -> Iterator[list[Token]]:
    run: list[Token] = []
    body = _Body(dialect)
    for token in tokens:
        if token.key == ";" and not body.is_open:
            yield run
            run, body = [], _Body(dialect)
            continue
        run.append(token)
        if token.kind not in (Kind.SPACE, Kind.COMMENT):
            body.see(token.key)
    yield run


def _trimmed(run: list[Token]) -> list[Token]:
    start, end = 0, len(run)
    while start < end and run[start].kind is Kind.SPACE:
        start += 1
    while end > start and run[end - 1].kind is Kind.SPACE:
        end -= 1
    return run[start:end]


_PROBE = "probe"
_ROUTINES = frozenset({"TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "PACKAGE"})
_HEADER_WORDS = 40
"""How far into a CREATE the kind of object may stand: `CREATE OR REPLACE DEFINER = `a`@`b` … TRIGGER`."""
_BLOCKS = frozenset({"IF", "WHILE", "LOOP", "REPEAT", "FOR"})
_STATEMENT_STARTS = frozenset({";", "BEGIN", "THEN", "ELSE", "DO", "LOOP", "REPEAT", "ROW", ":", ")"})


class _Body:
    """Follows one statement and knows whether it is inside a body that holds statements of its own."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._count = 0
        self._first = ""
        self._kind = ""
        self._depth = 0
        self._last = ""
        self._before_last = ""

    @property
    def is_open(self) -> bool:
        if self._dialect == "sqlite":
            # SQLite's own rule: a trigger ends with `; END ;`, as every statement of its body ends with `;`.
            closed = self._last == "END" and self._before_last == ";"
            return self._kind == "TRIGGER" and self._depth > 0 and not closed
        return self._depth > 0

    def see(self, key: str) -> None:
        if self._count == 0:
            self._first = key
        elif not self._kind and self._count < _HEADER_WORDS and self._first in ("CREATE", "ALTER"):
            self._kind = self._object_kind(key)
        if self._last != ".":
            self._depth = max(0, self._depth + self._step(key))
        self._count += 1
        self._before_last, self._last = self._last, key

    def _object_kind(self, key: str) -> str:
        if key in ("TABLE", "VIEW", "INDEX", "("):
            return "other"
        return key if key in _ROUTINES or key == "RULE" else ""

    def _step(self, key: str) -> int:
        if self._dialect == "sqlite":
            return 1 if key == "BEGIN" and self._kind == "TRIGGER" and self._depth == 0 else 0
        if self._dialect == "postgres":
            return self._postgres_step(key)
        return self._mysql_step(key)

    def _postgres_step(self, key: str) -> int:
        if self._kind == "RULE":
            return {"(": 1, ")": -1}.get(key, 0)
        if key == "ATOMIC" and self._last == "BEGIN" and self._kind in _ROUTINES:
            return 1
        if self._depth and key in ("CASE", "END"):
            return 1 if key == "CASE" else -1
        return 0

    def _mysql_step(self, key: str) -> int:
        if key == "ATOMIC" and self._last == "NOT" and self._first == "BEGIN" and self._count == 2:
            self._kind = "EVENT"
            return 1
        if self._kind not in _ROUTINES or self._last == "END":
            return 0
        if key in ("BEGIN", "CASE"):
            return 1
        if key == "END":
            return -1
        starts = self._last in _STATEMENT_STARTS and not (key == "FOR" and self._last == ")")
        return 1 if key in _BLOCKS and starts else 0
