"""Keys of deleted rows on MariaDB and MySQL: a worker has found them before it deletes, and hashes them itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from lapse.engines.ledger_keys import from_hex, is_hex, refuse_other_width
from lapse.engines.mysql import keys
from lapse.engines.mysql.keys import Form, Key, Part, Walk
from lapse.errors import InvalidValue, Unsupported
from lapse.model.ledger_keys import Noted, Secret, written, written_alone
from lapse.model.table import Column, Table


def _number(value: Any) -> bytes:
    return b"%d" % int(value)


def _decimal(value: Any) -> bytes:
    return format(Decimal(str(value)).normalize(), "f").encode("ascii")


def _moment(value: Any) -> bytes:
    """As the server writes it, without zeros at the end of a fraction."""
    text = str(value).strip().replace("T", " ")
    return re.sub(r"(\.\d*?)0*$", lambda found: "" if found[1] == "." else found[1], text).encode("ascii")


def _from_hex(value: Any) -> bytes:
    return bytes.fromhex(str(value))


def _uuid(value: Any) -> bytes:
    return str(UUID(str(value))).encode("ascii")


_WRITTEN: dict[Form, Callable[[Any], bytes]] = {
    Form.NUMBER: _number,
    Form.YEAR: _number,
    Form.DECIMAL: _decimal,
    Form.MOMENT: _moment,
    Form.TEXT: _from_hex,
    Form.BYTES: _from_hex,
    Form.UUID: _uuid,
}
"""How a value that `Part.selected` has read is hashed: text as the bytes of its own character set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noter:
    """`walk` is along the primary key, whose values a worker finds."""

    secret: Secret
    walk: Walk

    def noted(self, found: Iterable[Key]) -> Noted:
        if [part.form for part in self.walk.parts] == [Form.NUMBER]:
            return self.secret.noted_numbers([int(key[0]) for key in found])
        writers = [_WRITTEN[part.form] for part in self.walk.parts]
        if len(writers) == 1:
            # The usual case without a loop for each row: with others it takes as long as reading the key.
            return self.secret.noted(map(written_alone, map(writers[0], [key[0] for key in found])))
        return self.secret.noted(
            written([write(value) for write, value in zip(writers, key, strict=True)]) for key in found
        )


def can_be_told(column: Column) -> bool:
    try:
        return keys.form(column.name, re.split(r"\W", column.type.lower(), maxsplit=1)[0]) in _WRITTEN
    except Unsupported:
        return False


def parts(connection: Connection, table: Table, values: Sequence[str]) -> list[bytes]:
    refuse_other_width(table, values)
    walk = keys.load(connection, table.name, "PRIMARY")
    return [_asked(connection, part, value) for part, value in zip(walk.parts, values, strict=True)]


def _asked(connection: Connection, part: Part, value: str) -> bytes:
    if part.form is Form.BYTES:
        return from_hex(value, part.column) if is_hex(value) else value.encode()
    if part.form is Form.TEXT:
        sql = f"SELECT hex(CONVERT(%s USING {part.charset}))"
        return _from_hex(connection.exec_driver_sql(sql, (value,)).scalar_one())
    if part.form is Form.MOMENT:
        return _moment(_instant(part.column, value))
    try:
        return _WRITTEN[part.form](value)
    except (ValueError, InvalidOperation, KeyError):
        raise InvalidValue("--key", value, f"cannot be a value of column {part.column}") from None


def _instant(column: str, value: str) -> str:
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidValue("--key", value, f"is no time in ISO 8601, which column {column} needs") from None
    return value if len(value) == len("2026-01-31") else found.replace(tzinfo=None).isoformat(" ")
