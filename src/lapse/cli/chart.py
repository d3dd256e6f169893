"""A column chart in text, for terminals and logs alike."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"
HEIGHT = 5


def columns(values: Sequence[int], *, height: int = HEIGHT) -> list[str]:
    """One column a value, the highest on top; the scale stands at the left and begins at zero."""
    top = max(values, default=0)
    scale = [f"{top:,}", *[""] * (height - 2), "0"]
    width = max(map(len, scale))
    # A value that is there at all is drawn, however small it is beside the others.
    eighths = (
        [max(round(value * height * 8 / top), 1) if value else 0 for value in values] if top else [0] * len(values)
    )
    lines = []
    for line in range(height):
        floor = (height - 1 - line) * 8
        bar = "".join(BLOCKS[max(0, min(8, filled - floor))] * 2 for filled in eighths)
        lines.append(f"{scale[line]:>{width}} ┤{bar}".rstrip())
    return lines


def axis(count: int, labels: Sequence[tuple[int, str]], *, indent: int) -> str:
    """A line of labels below a chart, each beginning at its column."""
    line = [" "] * (indent + 2 * count)
    for position, text in labels:
        start = indent + 2 * position
        line[start : start + len(text)] = text
    return "".join(line).rstrip()
