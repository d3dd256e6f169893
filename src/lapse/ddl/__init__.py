"""SQL text to statements and back."""

from __future__ import annotations

from lapse.ddl.comment import CommentRules, parse_comment
from lapse.ddl.expression import parse_expression, recognise_column
from lapse.ddl.parser import parse, parse_one

__all__ = ["CommentRules", "parse", "parse_comment", "parse_expression", "parse_one", "recognise_column"]
