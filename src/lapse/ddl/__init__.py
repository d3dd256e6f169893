"""SQL text to statements and back."""

from __future__ import annotations

from lapse.ddl.comment import parse_comment_policy, without_policy
from lapse.ddl.convert import CONVERT_TARGETS, ConvertResult, convert
from lapse.ddl.expression import parse_expression, recognise_column
from lapse.ddl.parser import parse, parse_one
from lapse.ddl.render import render, render_options

__all__ = [
    "CONVERT_TARGETS",
    "ConvertResult",
    "convert",
    "parse",
    "parse_comment_policy",
    "parse_expression",
    "parse_one",
    "recognise_column",
    "render",
    "render_options",
    "without_policy",
]
