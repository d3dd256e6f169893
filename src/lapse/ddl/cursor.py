"""Reading the tokens of one statement from left to right, and cutting spans out of its text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lapse.ddl.lexer import SPACES, Token, TokenKind, tokenize
from lapse.ddl.literal import is_terminated, unquote
from lapse.ddl.script import Piece, place
from lapse.errors import TtlSyntaxError
from lapse.model.table import TableName

Span = tuple[int, int]

_TIDB_COMMENT = re.compile(r"(/\*T!\[ttl\])(.*)(\*/)\Z", re.DOTALL | re.IGNORECASE)


class TokenCursor:
    """Sees words and signs only. What stands in a `/*T![ttl] … */` comment is seen as if it stood there in the open."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.dialect = piece.dialect
        self.tokens: list[Token] = []
        self.index = 0
        self._comments: dict[int, Span] = {}
        for token in piece.tokens():
            self._add(token)

    def _add(self, token: Token) -> None:
        if token.kind is TokenKind.COMMENT:
            special = _TIDB_COMMENT.match(token.text)
            if special:
                for inner in tokenize(special[2], self.dialect, offset=token.start + special.end(1)):
                    if inner.kind not in (TokenKind.SPACE, TokenKind.COMMENT):
                        self._comments[inner.start] = (token.start, token.end)
                        self.tokens.append(inner)
        elif token.kind is not TokenKind.SPACE:
            self.tokens.append(token)

    @property
    def done(self) -> bool:
        return self.index >= len(self.tokens)

    def peek(self, ahead: int = 0) -> Token | None:
        position = self.index + ahead
        return self.tokens[position] if 0 <= position < len(self.tokens) else None

    def key(self, ahead: int = 0) -> str:
        token = self.peek(ahead)
        return token.key if token else ""

    def kind(self, ahead: int = 0) -> TokenKind | None:
        token = self.peek(ahead)
        return token.kind if token else None

    def at(self, *keys: str) -> bool:
        return all(self.key(ahead) == key for ahead, key in enumerate(keys))

    def take(self, *keys: str) -> bool:
        if not self.at(*keys):
            return False
        self.index += len(keys)
        return True

    def take_any(self, *keys: str) -> bool:
        return any(self.take(key) for key in keys)

    def next(self) -> Token:
        token = self.peek()
        if token is None:
            raise self.problem("the statement ends too early")
        self.index += 1
        return token

    def expect(self, key: str, where: str) -> Token:
        token = self.peek()
        if token is None or token.key != key:
            raise self.problem(f"expected {key} {where}")
        return self.next()

    def problem(self, message: str, token: Token | None = None, *, hint: str | None = None) -> TtlSyntaxError:
        """An error at `token`, at the next token, or where the text ends."""
        token = token or self.peek()
        offset = token.start if token else self.piece.end
        line, column = place(self.piece.source, offset)
        found = f", found {token.text[:40]!r}" if token and message.startswith("expected") else ""
        return TtlSyntaxError(message + found, line=line, column=column, hint=hint)

    def skip_group(self) -> None:
        """Past the `)` that closes the `(` here, or to the end: what is wrong there the database will say."""
        depth = 0
        while not self.done:
            depth += {"(": 1, ")": -1}.get(self.next().key, 0)
            if depth == 0:
                return

    def identifier(self) -> str | None:
        """A name here, as the database would store it; None (and nothing read) when there is none."""
        token = self.peek()
        if token is None:
            return None
        double_quoted = token.kind is TokenKind.STRING and token.text.startswith('"')
        if token.kind is TokenKind.QUOTED or double_quoted:
            if not is_terminated(token, self.dialect):
                return None
            self.index += 1
            return unquote(token, self.dialect)
        if token.kind is not TokenKind.WORD:
            return None
        self.index += 1
        return _fold(token.text) if self.dialect == "postgres" else token.text

    def table_name(self) -> TableName | None:
        """`name`, `schema.name` or, with the database in front, `database.schema.name`."""
        start, parts = self.index, [self.identifier()]
        while parts[-1] is not None and self.take("."):
            parts.append(self.identifier())
        if parts[-1] is None or len(parts) > 3:
            self.index = start
            return None
        return TableName(parts[-1], parts[-2] if len(parts) > 1 else None)

    def span(self, first: int, last: int) -> Span:
        """From the token numbered `first` to the one numbered `last`, a comment around them included."""
        return self._edges(first)[0], self._edges(last)[1]

    def _edges(self, index: int) -> Span:
        token = self.tokens[index]
        return self._comments.get(token.start, (token.start, token.end))


def _fold(name: str) -> str:
    """PostgreSQL puts bare names into lower case, but only their ASCII letters."""
    return (
        name.lower() if name.isascii() else "".join(letter.lower() if letter.isascii() else letter for letter in name)
    )


def list_cuts(spans: list[Span], removed: list[bool]) -> list[Span]:
    """What to cut so that `removed` elements of a comma-separated list go, each with one comma.

    For lists of which something stays; a list that goes as a whole is cut by the caller, brackets and all.
    """
    cuts: list[Span] = []
    kept_before = False
    for index, (start, end) in enumerate(spans):
        if not removed[index]:
            kept_before = True
        elif kept_before:
            cuts.append((spans[index - 1][1], end))
        else:
            cuts.append((start, spans[index + 1][0]))
    return cuts


def without(piece: Piece, cuts: Iterable[Span]) -> str:
    """The piece's text without the spans; the blanks before a span go too where nothing needs them."""
    source, kept, position = piece.source, "", piece.start
    for start, end in _merged(cuts):
        head = source[position:start]
        if end >= piece.end or source[end] in SPACES + ",)":
            head = _rstrip(head)
        elif head and head[-1] not in _APART and source[end] not in _APART:
            head += " "
        kept += head
        position = max(position, end)
    return (kept + source[position : piece.end]).rstrip(SPACES)


_APART = SPACES + "(),;"
"""Two tokens with one of these between them do not become one."""


def _merged(cuts: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(cuts):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _rstrip(head: str) -> str:
    """Blanks off the end, but never the line break that ends a `--` comment."""
    bare = head.rstrip(SPACES)
    last_line = bare[bare.rfind("\n") + 1 :]
    return head if "--" in last_line or "#" in last_line else bare
