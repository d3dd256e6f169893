"""A text of SQL cut into statements, with the place each one begins.

Only a `;` that ends a statement cuts: not one in a string, a comment or a dollar quote (the lexer sees to those), nor
one inside the body of a trigger, a routine or an event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lapse.ddl.lexer import SPACES, Token, TokenKind, key, scan, tokenize


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One statement: its own bytes without the `;`, comments before and inside it included, spaces around it not.

    `start` and `end` are offsets in `source`, the whole text. `verb` is the first word in upper case, '' for a comment
    alone, `EXECUTABLE` for a comment that MySQL executes; `line` and `column` are where it stands.
    """

    source: str
    dialect: str
    start: int
    end: int
    verb: str
    line: int
    column: int

    @property
    def text(self) -> str:
        return self.source[self.start : self.end].rstrip(SPACES)

    @property
    def place(self) -> tuple[int, int]:
        return self.line, self.column

    def tokens(self) -> list[Token]:
        return tokenize(self.source[self.start : self.end], self.dialect, offset=self.start)


def place(text: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both from 1."""
    line_start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - line_start + 1


def split(text: str, dialect: str) -> list[Piece]:
    return list(pieces(text, dialect))


def pieces(text: str, dialect: str) -> Iterator[Piece]:
    """One after the other, so that a long script is never held as tokens."""
    lines = _Lines(text)
    for span in _spans(text, dialect):
        line, column = lines.place(span.first if span.first >= 0 else span.start)
        yield Piece(
            source=text,
            dialect=dialect,
            start=span.start,
            end=span.end,
            verb=span.verb,
            line=line,
            column=column,
        )


def is_complete(text: str, dialect: str) -> bool:
    """Does the text end with the `;` of its last statement, so that what is typed next begins another one?"""
    probed = f"{text}\nprobe"
    *before, last = pieces(probed, dialect)
    return (bool(before) or ";" in text) and (last.line, last.column) == place(probed, len(text) + 1)


@dataclass(slots=True)
class _Span:
    """A statement being read; `first` is where its first word or sign stands, `next` what follows its end."""

    start: int = -1
    end: int = -1
    first: int = -1
    next: int = -1
    verb: str = ""
    is_verb_settled: bool = False

    def see(self, kind: TokenKind, part: str, start: int, dialect: str) -> None:
        if self.start < 0:
            self.start = start
        self.end = start + len(part)
        executable = dialect == "mysql" and part.startswith(_EXECUTABLE_COMMENTS)
        if kind is TokenKind.COMMENT and not executable:
            return
        if self.first < 0:
            self.first = start
        if not self.is_verb_settled:
            self.verb = EXECUTABLE if executable else part.upper() if kind is TokenKind.WORD else ""
            self.is_verb_settled = part != "("


EXECUTABLE = "/*!"
_EXECUTABLE_COMMENTS = ("/*!", "/*M!")
_DELIMITER_LINE = re.compile(
    rf"(?:[{SPACES}]++|(?:\#|--(?=\s))[^\n]*+|/\*(?!M?!)(?:(?!\*/).)*+\*/)*+delimiter[ \t]++(\S++)[^\n]*+",
    re.IGNORECASE | re.DOTALL,
)
"""A command of MySQL's client, which dumps contain: statements end with something else from here on."""


def _spans(text: str, dialect: str) -> Iterator[_Span]:
    if dialect != "mysql" or "delimiter" not in text.lower():
        yield from _spans_from(text, dialect, 0)
        return
    position, delimiter = 0, ";"
    while position < len(text):
        line = _DELIMITER_LINE.match(text, position)
        if line is not None:
            position, delimiter = line.end(), line[1]
            continue
        spans = _spans_from(text, dialect, position) if delimiter == ";" else _spans_until(text, position, delimiter)
        span = next(spans, None)
        if span is None:
            return
        yield span
        position = span.next


def _spans_from(text: str, dialect: str, position: int) -> Iterator[_Span]:
    span, body = _Span(), _Body(dialect)
    for kind, part, start in scan(text, dialect, position):
        if kind is TokenKind.SPACE:
            continue
        if part == ";" and kind is TokenKind.PUNCTUATION and not body.is_open:
            if span.start >= 0:
                span.next = start + 1
                yield span
            span, body = _Span(), _Body(dialect)
            continue
        span.see(kind, part, start, dialect)
        if kind is not TokenKind.COMMENT and not body.is_plain:
            body.see(key(kind, part))
    if span.start >= 0:
        span.next = len(text)
        yield span


def _spans_until(text: str, position: int, delimiter: str) -> Iterator[_Span]:
    """The next statement, which ends with a delimiter that stands in no quote and no comment."""
    span = _Span()
    for kind, part, start in scan(text, "mysql", position):
        if kind is TokenKind.SPACE:
            continue
        found = -1
        if kind not in (TokenKind.STRING, TokenKind.QUOTED, TokenKind.COMMENT):
            # It may stand at the end of a word, as in `END$$`, or be several tokens.
            found = text.find(delimiter, start, start + len(part) + len(delimiter) - 1)
        if found > start:
            span.see(kind, text[start:found], start, "mysql")
        if found >= 0:
            span.next = found + len(delimiter)
            if span.start < 0:
                yield from _spans_until(text, span.next, delimiter)
            else:
                yield span
            return
        span.see(kind, part, start, "mysql")
    if span.start >= 0:
        span.next = len(text)
        yield span


class _Lines:
    """Places in a text, asked for in order: each part of it is counted once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._seen = 0
        self._line = 1
        self._line_start = 0

    def place(self, offset: int) -> tuple[int, int]:
        self._line += self._text.count("\n", self._seen, offset)
        self._line_start = max(self._line_start, self._text.rfind("\n", self._seen, offset) + 1)
        self._seen = offset
        return self._line, offset - self._line_start + 1


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
    def is_plain(self) -> bool:
        """Known by its first word to have no body, so that the rest of it need not be looked at."""
        return self._count > 0 and self._first not in ("CREATE", "ALTER", "BEGIN")

    @property
    def is_open(self) -> bool:
        if self._dialect == "sqlite":
            # SQLite's own rule: a trigger ends with `; END ;`, as every statement of its body ends with `;`.
            closed = self._last == "END" and self._before_last == ";"
            return self._kind == "TRIGGER" and self._depth > 0 and not closed
        return self._depth > 0

    def see(self, word: str) -> None:
        if self._count == 0:
            self._first = word
        elif not self._kind and self._count < _HEADER_WORDS and self._first in ("CREATE", "ALTER"):
            self._kind = self._object_kind(word)
        if self._last != ".":
            self._depth = max(0, self._depth + self._step(word))
        self._count += 1
        self._before_last, self._last = self._last, word

    def _object_kind(self, key: str) -> str:
        if key in ("TABLE", "VIEW", "INDEX", "DATABASE", "SCHEMA", "USER", "ROLE"):
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
