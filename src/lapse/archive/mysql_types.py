"""Types of MariaDB and MySQL, by COLUMN_TYPE followed by `character set NAME` where a column has one.

Cells are what the text protocol sends in a session with `time_zone = '+00:00'` and `utf8mb4`: text, or bytes for BIT,
binary and spatial columns. A FLOAT has to be read as a DOUBLE: the server writes six digits of it otherwise.
"""

from __future__ import annotations

import re

from lapse.archive.postgres_types import MAX_DECIMAL_DIGITS
from lapse.archive.storage import BinaryStorage, Parsed, Storage, TextStorage, date, decimal, integer, moment

_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 32, "int": 32, "integer": 32, "bigint": 64}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_CHOICES = ("enum", "set")
_BINARY = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit")
_SPATIAL = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
    "geomcollection",
)
_AS_TEXT = {
    "time": "it may be more than a day, and negative",
    "json": "its spaces and the order of its keys are kept",
    "uuid": "no reader needs more",
    "inet4": "no native type",
    "inet6": "no native type",
}
_LOSSLESS = frozenset(
    "ascii latin1 latin2 latin5 latin7 utf8 utf8mb3 utf8mb4 utf16 utf16le utf32 ucs2 koi8r koi8u cp1250 cp1251 cp1256"
    " cp1257 cp850 cp852 cp866 greek hebrew tis620 swe7 geostd8 armscii8 dec8 hp8 keybcs2 macce macroman".split()
)
"""Character sets whose every character is one of Unicode's and comes back from it. Those of East Asia have characters
that come back as others."""
_WORD = re.compile(r"\s*(\w+)\s*(?:\(([^)]*)\))?")
_CHARSET = re.compile(r"character set (\w+)$")


def storage(type_name: str, made_of: tuple[str, ...] | None) -> Storage | None:
    """None for a type that is not known, and for text in a character set that is not kept exactly."""
    found = _WORD.match(type_name.lower())
    if found is None or made_of is not None:
        return None
    name, size = found[1], found[2] or ""
    if name in _TEXTS or name in _CHOICES:
        return _text(name, _CHARSET.search(type_name.lower()))
    if name in _INTEGERS:
        return integer(("u" if "unsigned" in type_name.lower() else "") + f"int{_INTEGERS[name]}")
    if name in _BINARY or name in _SPATIAL:
        return BinaryStorage()
    return _number(name, size) or _time(name, size) or (TextStorage(note=_AS_TEXT[name]) if name in _AS_TEXT else None)


def _text(name: str, charset: re.Match[str] | None) -> Storage | None:
    if charset is not None and charset[1] == "binary":
        return BinaryStorage()
    if charset is None or charset[1] not in _LOSSLESS:
        return None
    return TextStorage(note=f"{name}, by the names of its members") if name in _CHOICES else TextStorage()


def _number(name: str, size: str) -> Storage | None:
    if name in ("float", "double", "real"):
        return Parsed(name="float64")
    if name not in ("decimal", "numeric"):
        return None
    precision, _, scale = (size or "10,0").partition(",")
    if int(precision) > MAX_DECIMAL_DIGITS:
        return TextStorage(note="it has more digits than a decimal of Parquet")
    return decimal(int(precision), int(scale or 0))


def _time(name: str, size: str) -> Storage | None:
    match name:
        case "date":
            return date()
        case "datetime":
            return moment(digits=int(size or 0))
        case "timestamp":
            return moment(zone=True, digits=int(size or 0))
        case "year":
            return integer("int16", digits=4)
    return None
