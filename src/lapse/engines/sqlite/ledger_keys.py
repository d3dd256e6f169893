"""Keys of deleted rows in SQLite, where any column may hold a value of any kind: each is written by its kind."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from lapse.engines.keyset import Key
from lapse.engines.ledger_keys import from_hex, is_hex, refuse_other_width
from lapse.model.ledger_keys import Noted, Part, Secret, written, written_alone
from lapse.model.table import Table


def noted(secret: Secret, keys: Sequence[Key]) -> Noted:
    if keys and len(keys[0]) == 1:
        values = [value for (value,) in keys]
        if set(map(type, values)) == {int}:
            return secret.noted_numbers(values)
        return secret.noted(map(written_alone, map(_part, values)))
    return secret.noted(written([*map(_part, key)]) for key in keys)


def is_address(connection: Connection, table: Table) -> bool:
    """Is the primary key the row id itself, and not an index beside it?"""
    sql = "SELECT count(*) FROM pragma_index_list(?) WHERE origin = 'pk'"
    return len(table.primary_key) == 1 and not connection.exec_driver_sql(sql, (table.name.name,)).scalar_one()


def _part(value: object) -> Part:
    """The usual kind first: it is done for each row that is deleted."""
    if type(value) is str:
        return value.encode("utf-8", "surrogatepass")
    if value is None:
        return None
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode("ascii")
    return (repr(value) if isinstance(value, float) else str(value)).encode("utf-8", "surrogatepass")


def parts(table: Table, values: Sequence[str]) -> list[bytes]:
    refuse_other_width(table, values)
    return [_asked(table, name, value) for name, value in zip(table.primary_key, values, strict=True)]


def _asked(table: Table, name: str, value: str) -> bytes:
    """As the column stores it: one that is declared for numbers makes a number of text that looks like one."""
    column = table.column(name)
    kind = (column.type if column is not None else "").upper()
    is_text = any(each in kind for each in ("CHAR", "CLOB", "TEXT")) and "INT" not in kind
    is_real = any(each in kind for each in ("REAL", "FLOA", "DOUB")) and "INT" not in kind
    if is_hex(value) and not is_real and "INT" not in kind:
        return _part(from_hex(value, name)) or b""
    return (value if is_text else _number(value, whole=not is_real)).encode("utf-8", "surrogatepass")


def _number(text: str, *, whole: bool) -> str:
    try:
        if whole and text.strip().lstrip("+-").isdecimal() and -(2**63) <= int(text) < 2**63:
            # As a float it would lose its last digits.
            return str(int(text))
        found = float(text)
        return str(int(found)) if whole and int(found) == found else repr(found)
    except (ValueError, OverflowError):
        return text
