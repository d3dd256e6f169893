"""Walking along an index, whatever its columns are.

A value travels as its engine's order sees it: numbers as numbers, text as the bytes of its own character set, members
of ENUM and SET as their ordinal. So the constant that comes back compares with the column as the column compares with
itself, in any collation, and the server finds it in the index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection

from lapse.engines.mysql.names import literal, quote
from lapse.errors import Drift, Unsupported
from lapse.model.table import Table, TableName

INCLUSIVE = "="
"""Before the end of a range: that key belongs to the range, having no successor to name."""

ROW_ID = "_tidb_rowid"
"""TiDB's number of a row, where the primary key is not what it stores rows by, or there is none."""

Key = tuple[Any, ...]


class Form(StrEnum):
    """How a column's value is read and written."""

    NUMBER = "number"
    DECIMAL = "decimal"
    FLOAT = "float"
    TEXT = "text"
    BYTES = "bytes"
    ORDINAL = "ordinal"
    BITS = "bits"
    YEAR = "year"
    MOMENT = "moment"
    SPAN = "span"
    UUID = "uuid"
    ADDRESS = "address"


_FORMS = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), Form.NUMBER),
    "decimal": Form.DECIMAL,
    **dict.fromkeys(("float", "double"), Form.FLOAT),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), Form.TEXT),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), Form.BYTES),
    **dict.fromkeys(("enum", "set"), Form.ORDINAL),
    "bit": Form.BITS,
    "year": Form.YEAR,
    **dict.fromkeys(("date", "datetime", "timestamp"), Form.MOMENT),
    "time": Form.SPAN,
    "uuid": Form.UUID,
    **dict.fromkeys(("inet4", "inet6"), Form.ADDRESS),
}


_END_OF_COMMENT = "*/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One column of an index. `members` is how many labels an ENUM has; `alias` is what the table is called."""

    column: str
    form: Form
    descending: bool = False
    charset: str | None = None
    collation: str | None = None
    members: int = 0
    alias: str = ""
    unsigned: bool = False

    @property
    def sql(self) -> str:
        return f"{self.alias}.{quote(self.column)}" if self.alias else quote(self.column)

    @property
    def selected(self) -> str:
        """SQL whose value `literal` can write again."""
        match self.form:
            case Form.NUMBER:
                return self.sql
            case Form.FLOAT:
                # A FLOAT shows six digits of itself; as a DOUBLE it shows all it has.
                return f"{self.sql} + 0e0"
            case Form.ORDINAL:
                return f"CAST({self.sql} AS UNSIGNED)"
            case Form.BITS | Form.YEAR:
                return f"{self.sql} + 0"
            case Form.TEXT | Form.BYTES:
                return f"hex({self.sql})"
            case Form.DECIMAL | Form.MOMENT | Form.SPAN | Form.UUID | Form.ADDRESS:
                return f"CAST({self.sql} AS CHAR)"

    def literal(self, value: Any) -> str:
        match self.form:
            case Form.NUMBER | Form.ORDINAL | Form.BITS | Form.YEAR:
                return str(int(value))
            case Form.FLOAT:
                text = repr(float(value))
                return text if "e" in text else f"{text}e0"
            case Form.DECIMAL:
                return _checked(str(value), r"-?\d+(\.\d+)?")
            case Form.BYTES:
                return f"x'{_checked(str(value), '[0-9A-Fa-f]*')}'"
            case Form.TEXT:
                return f"_{self.charset} x'{_checked(str(value), '[0-9A-Fa-f]*')}' COLLATE {self.collation}"
            case Form.MOMENT | Form.SPAN | Form.UUID | Form.ADDRESS:
                return literal(str(value))

    def beyond(self, value: Any) -> str:
        """True for rows that come after `value` in the index."""
        if self.members:
            # The server finds members of an ENUM in an index by equality only.
            # What was no member when it was inserted is stored as 0, before the first.
            later = range(int(value)) if self.descending else range(int(value) + 1, self.members + 1)
            return f"{self.sql} IN ({', '.join(map(str, later))})" if later else "FALSE"
        return f"{self.sql} {'<' if self.descending else '>'} {self.literal(value)}"

    def before(self, value: Any) -> str:
        return f"{self.sql} {'>' if self.descending else '<'} {self.literal(value)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """An index and the columns that order it, as one pages through it; without a name, it is the table itself."""

    index: str
    parts: tuple[Part, ...]

    def hint(self, word: str = "FORCE") -> str:
        """What keeps the server to it, behind the table's name."""
        return f" {word} INDEX ({quote(self.index)})" if self.index else " USE INDEX ()"

    def pinned(self, table: str) -> str:
        """The same for the optimizer, in a statement that takes no other hint: MySQL's DELETE of one table.

        Empty where a name would end the comment that hints are written in: the server would read the rest of the name
        as SQL, quoted or not.
        """
        if not self.index or _END_OF_COMMENT in table or _END_OF_COMMENT in self.index:
            return ""
        return f"INDEX({quote(table)} {quote(self.index)})"

    def of(self, alias: str) -> Walk:
        """The same in a statement with more than one table, which calls this one so."""
        return replace(self, parts=tuple(replace(part, alias=alias) for part in self.parts))

    @property
    def selected(self) -> str:
        return ", ".join(part.selected for part in self.parts)

    @property
    def order(self) -> str:
        return ", ".join(f"{part.sql} DESC" if part.descending else part.sql for part in self.parts)

    @property
    def backwards(self) -> str:
        return ", ".join(part.sql if part.descending else f"{part.sql} DESC" for part in self.parts)

    def after(self, key: Sequence[Any], *, inclusive: bool = False) -> str:
        """Rows after `key`, which may name only the first columns. Written out, so that an index range serves it."""
        return self._side(key, [part.beyond(value) for part, value in zip(self.parts, key, strict=False)], inclusive)

    def until(self, key: Sequence[Any], *, inclusive: bool = False) -> str:
        return self._side(key, [part.before(value) for part, value in zip(self.parts, key, strict=False)], inclusive)

    def equal(self, keys: Sequence[Key]) -> str:
        """Rows with one of these keys, all columns named."""
        if len(self.parts) == 1:
            return f"{self.parts[0].sql} IN ({', '.join(self.parts[0].literal(key[0]) for key in keys)})"
        if len(keys) == 1:
            # As a list of one row the server would not look it up in the index.
            return " AND ".join(
                f"{part.sql} = {part.literal(value)}" for part, value in zip(self.parts, keys[0], strict=True)
            )
        if any(part.form is Form.ORDINAL for part in self.parts):
            # MySQL compares a row with a member of an ENUM or SET as text, even where that is a number.
            return f"({' OR '.join(f'({self.equal([key])})' for key in keys)})"
        columns = ", ".join(part.sql for part in self.parts)
        rows = ", ".join(
            "(" + ", ".join(part.literal(value) for part, value in zip(self.parts, key, strict=True)) + ")"
            for key in keys
        )
        return f"({columns}) IN ({rows})"

    def _side(self, key: Sequence[Any], strict: list[str], inclusive: bool) -> str:
        branches, equals = [], ""
        for part, value, beyond in zip(self.parts, key, strict, strict=False):
            branches.append(f"({equals}{beyond})")
            equals += f"{part.sql} = {part.literal(value)} AND "
        if inclusive:
            branches.append(f"({equals.removesuffix(' AND ')})")
        return branches[0] if len(branches) == 1 else f"({' OR '.join(branches)})"


def load(connection: Connection, table: TableName, index: str, extra: Walk | None = None) -> Walk:
    """The walk along `index`; `extra` are columns that order rows which the index alone leaves equal."""
    if not index:
        return Walk(index="", parts=(Part(column=ROW_ID, form=Form.NUMBER),))
    rows = connection.exec_driver_sql(
        "SELECT s.COLUMN_NAME AS name, s.COLLATION AS direction, c.DATA_TYPE AS plain_type, c.COLUMN_TYPE AS type,"
        " c.CHARACTER_SET_NAME AS charset, c.COLLATION_NAME AS collation_name"
        " FROM information_schema.STATISTICS s JOIN information_schema.COLUMNS c"
        # Both views are given the name: the server opens every table it cannot leave out.
        " ON c.COLUMN_NAME = s.COLUMN_NAME AND c.TABLE_SCHEMA = coalesce(%s, DATABASE()) AND c.TABLE_NAME = %s"
        " WHERE s.TABLE_SCHEMA = coalesce(%s, DATABASE()) AND s.TABLE_NAME = %s AND s.INDEX_NAME = %s"
        " ORDER BY s.SEQ_IN_INDEX",
        (table.schema, table.name, table.schema, table.name, index),
    ).mappings()
    parts = tuple(part(dict(row)) for row in rows)
    if not parts:
        raise Drift(f"table {table} has no index {index} any more, which its job walks along")
    return Walk(index=index, parts=(*parts, *extra.parts) if extra else parts)


def encode(key: Sequence[Any]) -> str:
    return json.dumps([value.hex() if isinstance(value, float) else value for value in key])


def leading_number(text: str | None) -> str | None:
    """The first column of an encoded key or bound, where that is a whole number: enough to see how far a walk is."""
    match = re.match(r"\D?\[(-?\d+)[,\]]", text or "")
    return match[1] if match else None


def decode(text: str, walk: Walk) -> Key:
    values = json.loads(text)
    return tuple(
        float.fromhex(value) if part.form is Form.FLOAT else value
        for part, value in zip(walk.parts, values, strict=False)
    )


def part(row: Mapping[str, Any]) -> Part:
    """A column of an index, as the server describes both. Raises Unsupported."""
    kind, whole = str(row["plain_type"]).lower(), str(row["type"])
    return Part(
        column=row["name"],
        form=form(row["name"], kind),
        descending=row["direction"] == "D",
        charset=row["charset"],
        collation=row["collation_name"],
        unsigned="unsigned" in whole.lower(),
        members=len(re.findall(r"'(?:[^']|'')*'", whole)) if kind == "enum" else 0,
    )


def check_type(name: str, table: Table) -> None:
    """Raises Unsupported where an index on that column of a table cannot be walked along."""
    column = table.column(name)
    if column is not None:
        form(name, re.split(r"\W", column.type.lower(), maxsplit=1)[0])


def form(name: str, kind: str) -> Form:
    """How values of a column of that type are read and written. Raises Unsupported."""
    found = _FORMS.get(kind)
    if found is None:
        raise Unsupported(f"column {name} is {kind}, and Lapse cannot walk along an index on that type")
    return found


def _checked(text: str, pattern: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise Drift(f"the stored position {text!r} does not fit the key any more")
    return text
