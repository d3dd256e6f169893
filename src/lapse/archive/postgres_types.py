"""PostgreSQL's types, by the names of `format_type`.

Cells are what COPY writes in a session with `TimeZone = 'UTC'`, `DateStyle = 'ISO'`, `IntervalStyle = 'postgres'`,
`bytea_output = 'hex'` and `extra_float_digits = 1` or more: the output of each type's own function, which its input
function reads back as the same value. No cast is involved, which a user could have defined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lapse.archive.storage import BinaryStorage, Parsed, Storage, TextStorage, boolean, date, decimal, integer, moment

MAX_DECIMAL_DIGITS = 38
"""Of a decimal in Parquet that readers know."""

_NATIVE: Mapping[str, Storage] = {
    "smallint": integer("int16"),
    "integer": integer("int32"),
    "bigint": integer("int64"),
    "oid": integer("uint32"),
    "real": Parsed(name="float32"),
    "double precision": Parsed(name="float64"),
    "boolean": boolean(),
    "date": date(),
    "timestamp without time zone": moment(),
    "timestamp with time zone": moment(zone=True, suffix="+00"),
    "bytea": BinaryStorage(escaped=True),
}
_PLAIN = ("text", "character varying", "character", '"char"', "name", "citext")
_AS_TEXT = {
    "uuid": "no reader needs more",
    "json": "its spaces and the order of its keys are kept",
    "jsonb": "no native type holds its numbers",
    "xml": "no native type",
    "interval": "months, days and seconds are apart",
    "time without time zone": "it may be 24:00:00",
    "time with time zone": "no native type has the zone",
    "numeric": "its digits are not bounded",
    "inet": "no native type",
    "cidr": "no native type",
    "macaddr": "no native type",
    "macaddr8": "no native type",
    "bit": "no native type",
    "bit varying": "no native type",
    "tsvector": "no native type",
    "tsquery": "no native type",
    "jsonpath": "no native type",
    "pg_lsn": "no native type",
    "xid8": "no native type",
    "hstore": "no native type",
    "ltree": "no native type",
} | dict.fromkeys(("point", "line", "lseg", "box", "path", "polygon", "circle"), "no native type")
_RANGES = {
    f"{name}{kind}": "no native type"
    for name in ("int4", "int8", "num", "ts", "tstz", "date")
    for kind in ("range", "multirange")
}
_MODIFIER = re.compile(r"\s*\(([^)]*)\)")
_EXTENSIONS = re.compile(r'^(?:\w+|"[^"]+")\.(citext|hstore|ltree)$')


def storage(type_name: str, made_of: tuple[str, ...] | None) -> Storage | None:
    """None for a type whose text may be read back as another value: money, reg*, unknown types."""
    if made_of is not None:
        return TextStorage(note="a type of the user's, in its text form") if all(map(_is_known, made_of)) else None
    if type_name.endswith("[]"):
        known = _is_known(type_name.rstrip("[]"))
        return TextStorage(note="an array, in its text form, with its bounds") if known else None
    return _built_in(type_name)


def _built_in(type_name: str) -> Storage | None:
    modifiers = _MODIFIER.findall(type_name)
    name = _plain_name(type_name)
    if name == "numeric" and modifiers:
        return _numeric(modifiers[0])
    if name in _NATIVE:
        return _NATIVE[name]
    if name in _PLAIN:
        return TextStorage()
    note = (_AS_TEXT | _RANGES).get(name)
    return TextStorage(note=note) if note else None


def _plain_name(type_name: str) -> str:
    name = _MODIFIER.sub("", type_name)
    extension = _EXTENSIONS.match(name)
    return extension[1] if extension else "interval" if name.startswith("interval ") else name


def _numeric(modifier: str) -> Storage:
    precision, _, scale = modifier.partition(",")
    digits, behind = int(precision), int(scale or 0)
    if digits <= MAX_DECIMAL_DIGITS and 0 <= behind <= digits:
        return decimal(digits, behind)
    return TextStorage(note="it has more digits than a decimal of Parquet")


def _is_known(type_name: str) -> bool:
    return storage(type_name, None) is not None
