"""What a quoted token means, and how a name or a text is quoted."""

from __future__ import annotations

import re
from functools import cache

from lapse.ddl.lexer import Token, TokenKind

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}


def is_terminated(token: Token, dialect: str) -> bool:
    """Does the quote that opens the token also close it?"""
    text = token.text
    if token.kind is TokenKind.COMMENT:
        return not text.startswith("/*") or (len(text) >= 4 and text.endswith("*/"))
    if token.kind not in (TokenKind.STRING, TokenKind.QUOTED):
        return True
    if text.startswith("$"):
        tag = text[: text.index("$", 1) + 1]
        return len(text) >= 2 * len(tag) and text.endswith(tag)
    if text.startswith("["):
        return text.endswith("]")
    body = text[1:] if text[0] in "eE" else text
    return _closed(body[0], _has_escapes(token, dialect)).fullmatch(body) is not None


@cache
def _closed(quote: str, escapes: bool) -> re.Pattern[str]:
    inside = rf"[^{quote}\\]++|{quote}{quote}|\\." if escapes else f"[^{quote}]++|{quote}{quote}"
    return re.compile(f"{quote}(?:{inside})*+{quote}", re.DOTALL)


def _has_escapes(token: Token, dialect: str) -> bool:
    return token.text[0] in "eE" or (dialect == "mysql" and token.kind is TokenKind.STRING)


def unquote(token: Token, dialect: str) -> str:
    """The value of a string, or the name that a quoted identifier stands for."""
    text = token.text
    if text.startswith("$"):
        tag = text[: text.index("$", 1) + 1]
        return text[len(tag) : -len(tag)]
    if text.startswith("["):
        return text[1:-1]
    body = text[1:] if text[0] in "eE" else text
    quote = body[0]
    value = body[1:-1].replace(quote * 2, quote)
    if not _has_escapes(token, dialect):
        return value
    # MySQL keeps the backslash before the wildcards of LIKE, where it is LIKE's own.
    escape = r"\\([^%_])" if dialect == "mysql" else r"\\(.)"
    return re.sub(escape, lambda match: _ESCAPES.get(match[1], match[1]), value, flags=re.DOTALL)


def quote_text(value: str, *, backslashes: bool = False) -> str:
    """`backslashes` for engines in which a backslash escapes."""
    body = value.replace("\\", "\\\\") if backslashes else value
    return "'" + body.replace("'", "''") + "'"


def quote_backticks(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def quote_double(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def quote_if_needed(name: str) -> str:
    """Bare where that reads back as the same name in every dialect."""
    return name if _PLAIN_NAME.fullmatch(name) and name.upper() not in RESERVED else quote_double(name)


RESERVED = frozenset(
    """ALL ALTER ANALYSE ANALYZE AND ANY ARRAY AS ASC ASYMMETRIC AT BETWEEN BIGINT BINARY BIT BOOLEAN BOTH BY CASE
    CAST CHAR CHARACTER CHECK COALESCE COLLATE COLUMN CONCURRENTLY CONNECT_BY_ROOT CONSTRAINT CREATE CROSS
    CURRENT_CATALOG CURRENT_DATE CURRENT_ROLE CURRENT_SCHEMA CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER DATE
    DATETIME DAY DEC DECIMAL DEFAULT DEFERRABLE DELETE DESC DISTINCT DIV DO DROP ELSE END ESCAPE EXCEPT EXISTS
    EXTRACT FALSE FETCH FLOAT FOR FOREIGN FREEZE FROM FULL FUNCTION GLOB GRANT GREATEST GROUP GROUPING HAVING HOUR
    IF ILIKE IN INDEX INITIALLY INNER INSERT INT INTEGER INTERSECT INTERVAL INTO IS ISNULL JOIN KEY KILL LATERAL
    LEADING LEAST LEFT LIKE LIMIT LOCALTIME LOCALTIMESTAMP MATCH MINUTE MOD MONTH NATIONAL NATURAL NCHAR NEW NEXT
    NO NONE NOT NOTNULL NULL NULLIF NUMERIC OF OFFSET OLD ON ONLY OR ORDER OUT OUTER OVER OVERLAPS OVERLAY
    PARTITION PARTITIONED_BY PLACING POSITION PRAGMA PRECISION PRIMARY QUALIFY REAL REFERENCES REGEXP RETURNING
    REVOKE RIGHT RLIKE ROLLBACK ROW SECOND SELECT SESSION_USER SET SETOF SIMILAR SMALLINT SOME STRING SUBSTRING
    SYMMETRIC TABLE TABLESAMPLE THEN TIME TIMESTAMP TO TRAILING TREAT TRIM TRUE UNCACHE UNION UNIQUE UPDATE USER
    USING VALUES VARCHAR VARIADIC VERBOSE VIEW WHEN WHERE WINDOW WITH XOR YEAR ZONE""".split()
)
"""Keywords of any dialect, and those of the reader of expressions: too many rather than too few."""
