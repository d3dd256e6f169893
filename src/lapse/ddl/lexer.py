"""SQL text as tokens that lose nothing: joined again they are the text, whatever the text was.

Engines disagree on what a quote, a comment or a backslash means, and a wrong guess would find a `;` or a TTL clause
inside a string of the user's. So there is one set of rules per dialect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

DIALECTS = ("sqlite", "postgres", "mysql")
SPACES = " \t\n\r\f\v\ufeff"
"""What separates tokens; the byte order mark counts, since editors leave it at the start of files."""


class TokenKind(StrEnum):
    WORD = "word"
    QUOTED = "quoted identifier"
    STRING = "string"
    NUMBER = "number"
    PUNCTUATION = "punctuation"
    COMMENT = "comment"
    SPACE = "whitespace"


@dataclass(frozen=True, slots=True)
class Token:
    """`key` is what keywords and signs are compared by: '' for everything that only looks like one."""

    kind: TokenKind
    text: str
    start: int
    key: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def tokenize(text: str, dialect: str, *, offset: int = 0) -> list[Token]:
    """`offset` is added to every position, for text cut out of a longer one."""
    return [Token(kind, part, start + offset, key(kind, part)) for kind, part, start in scan(text, dialect)]


def scan(text: str, dialect: str, position: int = 0) -> Iterator[tuple[TokenKind, str, int]]:
    """Kind, text and start of each token in turn, from `position`: for texts too long to hold all their tokens."""
    match_at = _rules(dialect).match
    nests = dialect == "postgres"
    while position < len(text):
        match = match_at(text, position)
        assert match is not None and match.lastgroup is not None, "the last rule takes any character"
        end = match.end()
        kind = _KINDS[match.lastgroup]
        if nests and kind is TokenKind.COMMENT and text.startswith("/*", position):
            end = _nested_comment_end(text, position)
        yield kind, text[position:end], position
        position = end


def key(kind: TokenKind, text: str) -> str:
    if kind is TokenKind.WORD:
        return text.upper()
    return text if kind is TokenKind.PUNCTUATION else ""


def first_semicolon(text: str, dialect: str) -> int:
    """Where the first `;` stands that is in no quote and no comment; the length of the text when there is none."""
    match = _up_to_semicolon(dialect).match(text)
    assert match is not None, "it matches the empty text"
    return match.end()


_KINDS = {kind.name: kind for kind in TokenKind}
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def _nested_comment_end(text: str, start: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)


# An unterminated quote runs to the end of the text: the engine will complain, and nothing inside it is taken for SQL.
_PLAIN_STRING = r"'(?:[^']++|'')*+(?:'|\Z)"
_ESCAPED_STRING = r"'(?:[^'\\]++|''|\\.?)*+(?:'|\Z)"
_DOUBLE_QUOTED = r'"(?:[^"]++|"")*+(?:"|\Z)'
_ESCAPED_DOUBLE_QUOTED = r'"(?:[^"\\]++|""|\\.?)*+(?:"|\Z)'
_BACKTICKS = r"`(?:[^`]++|``)*+(?:`|\Z)"
_BLOCK_COMMENT = r"/\*.*?(?:\*/|\Z)"
_DOLLAR_STRING = r"\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z)"

_STRINGS = {
    "sqlite": _PLAIN_STRING,
    "postgres": rf"[eE]{_ESCAPED_STRING}|{_PLAIN_STRING}|{_DOLLAR_STRING}",
    "mysql": f"{_ESCAPED_STRING}|{_ESCAPED_DOUBLE_QUOTED}",
}
_QUOTED = {
    "sqlite": rf"{_DOUBLE_QUOTED}|{_BACKTICKS}|\[[^\]]*+(?:\]|\Z)",
    # A backtick is an operator sign in PostgreSQL, yet TiDB's clause is written with backticks: both are told apart by
    # what stands between two of them.
    "postgres": rf"{_DOUBLE_QUOTED}|`[^`\n;']++`",
    "mysql": _BACKTICKS,
}
_COMMENTS = {
    "sqlite": rf"--[^\n]*+|{_BLOCK_COMMENT}",
    "postgres": rf"--[^\n\r]*+|{_BLOCK_COMMENT}",
    "mysql": rf"--(?=[\x00-\x20]|\Z)[^\n]*+|\#[^\n]*+|{_BLOCK_COMMENT}",
}
_WORDS = {"sqlite": r"\w[\w$]*+", "postgres": r"\w[\w$]*+", "mysql": r"[\w$]++"}


@cache
def _up_to_semicolon(dialect: str) -> re.Pattern[str]:
    """The rules once more, as one expression: some forty times faster than going from token to token."""
    rules = f"[{SPACES}]++|{_COMMENTS[dialect]}|{_STRINGS[dialect]}|{_QUOTED[dialect]}|{_WORDS[dialect]}|[^;]"
    return re.compile(f"(?:{rules})*+", re.DOTALL)


@cache
def _rules(dialect: str) -> re.Pattern[str]:
    groups = {
        "SPACE": f"[{SPACES}]++",
        "COMMENT": _COMMENTS[dialect],
        "STRING": _STRINGS[dialect],
        "QUOTED": _QUOTED[dialect],
        "NUMBER": r"(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?+(?![\w$])",
        "WORD": _WORDS[dialect],
        "PUNCTUATION": r":::|::|:=|->>|->|<=|>=|<>|!=|\|\||@@|.",
    }
    return re.compile("|".join(f"(?P<{name}>{rule})" for name, rule in groups.items()), re.DOTALL)
