"""What other layers may use."""

from __future__ import annotations

import ast
from pathlib import Path

import lapse.ddl


def test_public_names() -> None:
    assert sorted(lapse.ddl.__all__) == [
        "parse",
        "parse_comment_policy",
        "parse_expression",
        "parse_one",
        "recognise_column",
        "without_policy",
    ]


def test_sqlglot_is_imported_in_one_place() -> None:
    source = Path(lapse.ddl.__file__).parent.parent
    importers = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.split(".")[0] == "sqlglot" for name in names):
                importers.add(path.relative_to(source).as_posix())
    assert importers == {"ddl/expression.py"}
