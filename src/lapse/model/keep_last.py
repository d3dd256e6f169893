"""`ttl_keep_last`: how many rows of each group never expire, which are one group, and which of them are the last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lapse.errors import InvalidValue

MAX_ROWS = 1000
"""Each expired row is compared with the row that is this far from the end of its group."""
_FORM = "must have the form 'N BY (column, …) ORDER BY column', with N from 1 to 1000; BY may be left out"
_TOKEN = re.compile(r'\s*(?:(\w+)|"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([(),]))')
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_WORDS = frozenset({"by", "order"})


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepLast:
    """The `rows` with the largest `order` of all rows that are equal in `by`."""

    rows: int
    by: tuple[str, ...]
    order: str

    def __str__(self) -> str:
        groups = f" BY ({', '.join(map(_quoted, self.by))})" if self.by else ""
        return f"{self.rows}{groups} ORDER BY {_quoted(self.order)}"


def parse(text: str, name: str) -> KeepLast:
    """Names may be in double quotes or backticks."""
    tokens = _Tokens(text, name)
    count = tokens.word()
    if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= MAX_ROWS:
        raise InvalidValue(name, text, _FORM)
    by = tokens.names() if tokens.take("BY") else ()
    tokens.expect("ORDER")
    tokens.expect("BY")
    order = tokens.name()
    if tokens.take("DESC") or tokens.take("ASC"):
        raise InvalidValue(name, text, "has no ASC or DESC: the last rows are always those with the largest value")
    tokens.expect_end()
    if len({each.lower() for each in (*by, order)}) <= len(by):
        raise InvalidValue(name, text, "names a column twice")
    return KeepLast(rows=int(count), by=by, order=order)


class _Tokens:
    """Pairs of a word and whether it is bare: only bare words are keywords."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name
        self._left = list(self._read(text.rstrip()))

    def _read(self, text: str) -> Iterator[tuple[str, bool]]:
        place = 0
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise self._problem()
            bare, double, backtick, sign = found.groups("")
            quoted = double.replace('""', '"') or backtick.replace("``", "`")
            yield (quoted, False) if quoted else (bare or sign, True)
            place = found.end()

    def take(self, keyword: str) -> bool:
        if not self._left or not self._left[0][1] or self._left[0][0].upper() != keyword:
            return False
        self._left.pop(0)
        return True

    def expect(self, keyword: str) -> None:
        if not self.take(keyword):
            raise self._problem()

    def expect_end(self) -> None:
        if self._left:
            raise self._problem()

    def word(self) -> str:
        if not self._left:
            raise self._problem()
        return self._left.pop(0)[0]

    def name(self) -> str:
        if not self._left or (self._left[0][1] and self._left[0][0] in ("(", ")", ",")):
            raise self._problem()
        return self.word()

    def names(self) -> tuple[str, ...]:
        self.expect("(")
        found = [self.name()]
        while self.take(","):
            found.append(self.name())
        self.expect(")")
        return tuple(found)

    def _problem(self) -> InvalidValue:
        return InvalidValue(self._name, self._text, _FORM)


def _quoted(name: str) -> str:
    is_plain = _PLAIN.fullmatch(name) and name not in _WORDS
    return name if is_plain else '"' + name.replace('"', '""') + '"'
