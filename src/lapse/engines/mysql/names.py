"""Quoting, and the names of what Lapse makes in a MariaDB or MySQL database."""

from __future__ import annotations

import hashlib

from lapse.errors import Unsupported
from lapse.model.table import TableName

MAX_NAME = 64
"""Characters an identifier may have."""


def quote(name: str) -> str:
    if "\0" in name:
        raise Unsupported(f"the name {name!r} contains a zero byte")
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string constant; sessions of ours never have NO_BACKSLASH_ESCAPES."""
    if "\0" in text:
        raise Unsupported("a text with a zero byte cannot be written in SQL")
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def qualified(name: TableName) -> str:
    return f"{quote(name.schema)}.{quote(name.name)}" if name.schema else quote(name.name)


def source(name: TableName) -> str:
    """As it stands after FROM: one partition only, where the name says one."""
    partition = f" PARTITION ({quote(name.partition)})" if name.partition else ""
    return qualified(name) + partition


def live_view(table: TableName) -> TableName:
    name = f"{table.name}_live"
    if len(name) > MAX_NAME:
        raise Unsupported(f"the view {name} cannot be made: names have at most {MAX_NAME} characters")
    return TableName(name, table.schema)


def insert_trigger(table: TableName) -> TableName:
    return _trigger(table, "insert")


def update_trigger(table: TableName) -> TableName:
    return _trigger(table, "update")


def _trigger(table: TableName, event: str) -> TableName:
    """A trigger lives in the schema of its table. A long name is cut and made unique again."""
    name = f"lapse_{table.name}_{event}"
    if len(name) > MAX_NAME:
        digest = hashlib.sha256(table.name.encode()).hexdigest()[:10]
        name = f"lapse_{table.name[:40]}_{digest}_{event}"
    return TableName(name, table.schema)
