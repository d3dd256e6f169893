"""Which of sqlglot's classes stand for which of Lapse's words, and what is said about the rest."""

from __future__ import annotations

from typing import Any

VOLATILE = frozenset(
    """clock_timestamp timeofday gen_random_uuid uuid rand random nextval sysdate sleep pg_sleep txid_current
    unix_timestamp""".split()
)
NOW = frozenset({"CurrentTimestamp", "UtcTimestamp", "Localtimestamp", "CurrentDatetime"})
NOW_FUNCTIONS = frozenset({"now", "transaction_timestamp", "statement_timestamp", "current_timestamp", "utc_timestamp"})
OTHER_FUNCTIONS = {"from_unixtime": "to_timestamp", "to_timestamp": "to_timestamp", "char_length": "length"}
FUNCTIONS = {
    "Coalesce": "coalesce",
    "Nullif": "nullif",
    "Greatest": "greatest",
    "Least": "least",
    "Lower": "lower",
    "Upper": "upper",
    "Length": "length",
    "Abs": "abs",
    "Round": "round",
}
OPERATORS = {
    "EQ": "=",
    "NEQ": "<>",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
    "NullSafeEQ": "IS NOT DISTINCT FROM",
    "NullSafeNEQ": "IS DISTINCT FROM",
    "And": "AND",
    "Or": "OR",
    "Mul": "*",
    "Div": "/",
    "Mod": "%",
    "DPipe": "||",
}
TYPES = {
    "timestamptz": {"TIMESTAMPTZ", "TIMESTAMPLTZ"},
    "timestamp": {"TIMESTAMP", "TIMESTAMPNTZ", "DATETIME", "DATETIME2", "DATETIME64"},
    "date": {"DATE"},
    "interval": {"INTERVAL"},
    "integer": {"INT", "BIGINT", "SMALLINT", "TINYINT", "MEDIUMINT", "UBIGINT", "UINT"},
    "float": {"FLOAT", "DOUBLE", "DECIMAL", "REAL"},
    "text": {"TEXT", "VARCHAR", "CHAR", "NCHAR", "NVARCHAR"},
    "boolean": {"BOOLEAN"},
}


def why_not(node: Any, written: str) -> str:
    """Why a node is refused; `written` is the name of the function as the user wrote it, if it is one."""
    kind = type(node).__name__
    bases = {base.__name__ for base in type(node).__mro__}
    name = written or kind.lower()
    if kind in ("Subquery", "Select", "Exists", "Union"):
        return "sub-queries are not allowed in an expression"
    if "AggFunc" in bases:
        return f"aggregates such as {name} are not allowed in an expression"
    if kind == "Window":
        return "window functions are not allowed in an expression"
    if kind in ("Placeholder", "Parameter", "SessionParameter"):
        return "parameters are not allowed in an expression"
    if kind in ("Rand", "Uuid") or name.lower() in VOLATILE:
        return f"{name}() gives another value at each call, so it cannot say when a row expires"
    if kind == "Star":
        return "* is not allowed in an expression"
    if kind == "Alias":
        # What `seen_at + 30 days` is taken for.
        return "expected one expression and nothing else; durations are written INTERVAL '30 days'"
    return (
        f"function {name}() is not known"
        if written and "Func" in bases
        else f"{name} is not supported in an expression"
    )
