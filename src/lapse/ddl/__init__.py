"""SQL text to statements and back."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lapse.ddl.parser import parse, parse_one

if TYPE_CHECKING:
    from lapse.ddl.comment import parse_comment_policy, without_policy
    from lapse.ddl.expression import parse_expression, recognise_column

_MODULES = {
    "parse_comment_policy": "comment",
    "parse_expression": "expression",
    "recognise_column": "expression",
    "without_policy": "comment",
}
"""Statements without TTL, which are nearly all, are read without these."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"lapse.ddl.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'lapse.ddl' has no attribute {name!r}")


__all__ = [
    "parse",
    "parse_comment_policy",
    "parse_expression",
    "parse_one",
    "recognise_column",
    "without_policy",
]
