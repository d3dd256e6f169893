from collections.abc import Collection

from lapse.model.expression import Node


def parse_expression(text: str, *, columns: Collection[str] | None) -> Node:
    raise NotImplementedError
