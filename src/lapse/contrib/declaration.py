"""A policy as Python code declares it, beside a table's columns, put into the keys of `lapse.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from lapse.errors import UsageError
from lapse.model import interval, parameters
from lapse.model.interval import Interval
from lapse.model.suggestion import suggest_or_list

Value = str | int | bool | timedelta
_SAID_OTHERWISE = frozenset({"ttl_expire_after", "ttl_expiration_expression", "ttl_hide_expired"})
PARAMETERS = tuple(
    parameter.name.removeprefix("ttl_")
    for parameter in parameters.PARAMETERS.values()
    if parameter.field and parameter.name not in _SAID_OTHERWISE
)
"""What may be said besides when rows expire: the storage parameters, without `ttl_`."""


def keys(
    column: str | None,
    after: Value | None,
    expression: str | None,
    hide: bool | str,
    parameters: Mapping[str, Value],
    place: str = "Ttl",
) -> dict[str, str | int | bool]:
    """`column` alone is a time at which rows expire, `after` alone the managed column."""
    if column is None and after is None and expression is None:
        raise UsageError(f"{place} does not say when rows expire", hint="give a column, after, or an expression")
    if expression is not None and (column is not None or after is not None):
        raise UsageError(f"{place}: an expression stands alone", hint="leave column and after out")
    found: dict[str, str | int | bool] = {}
    if column is not None:
        found |= {"column": column, "after": text(after) if after is not None else "0 seconds"}
    elif after is not None:
        found["ttl_expire_after"] = text(after)
    if expression is not None:
        found["ttl_expiration_expression"] = expression
    if hide is not False:
        found["ttl_hide_expired"] = "view" if hide is True else hide
    for name, value in parameters.items():
        if name not in PARAMETERS:
            raise UsageError(f"{place}: {name} is not known", hint=suggest_or_list(name, PARAMETERS, "known:"))
        found[f"ttl_{name}"] = value if isinstance(value, bool | int) else text(value)
    for name, given in found.items():
        _check(name, given)
    return found


def _check(name: str, value: str | int | bool) -> None:
    """Raises InvalidValue. An expression is read once it is known what its table has."""
    if name == "after":
        interval.parse(str(value), name=name)
    elif name not in ("column", "ttl_expiration_expression"):
        parameters.find(name).parse(parameters.write(value), name)


def text(value: Value) -> str:
    if isinstance(value, timedelta):
        return str(Interval(micros=value // timedelta(microseconds=1)))
    return str(value)
