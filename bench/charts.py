"""Bar charts as SVG, drawn here: a few rectangles need no library, and the text stays text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LABEL, VALUE, BAR, GAP, TOP = 760, 220, 150, 20, 8, 34
OURS, THEIRS, INK, FAINT = "#2f6f4f", "#9aa5b1", "#3d4852", "#d5dbe1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """`low` and `high` are drawn as a line over the bar's end: the spread of the rounds."""

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    most = max([bar.high or bar.value for bar in bars], default=1.0) or 1.0
    scale = (WIDTH - LABEL - VALUE) / most
    height = TOP + len(bars) * (BAR + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="21" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for number, bar in enumerate(bars):
        parts += _drawn(bar, TOP + number * (BAR + GAP), scale)
    return "\n".join([*parts, "</svg>", ""])


def _drawn(bar: Bar, y: int, scale: float) -> list[str]:
    colour = OURS if bar.label.startswith("Lapse") else THEIRS
    end = LABEL + bar.value * scale
    middle = y + BAR / 2
    parts = [
        f'<text x="{LABEL - 8}" y="{middle + 4.5:.1f}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{LABEL}" y="{y}" width="{max(1.0, end - LABEL):.1f}" height="{BAR}" rx="2" fill="{colour}"/>',
    ]
    text_at = end
    if bar.low is not None and bar.high is not None:
        left, right = LABEL + bar.low * scale, LABEL + bar.high * scale
        parts.append(f'<path d="M{left:.1f} {middle}H{right:.1f}" stroke="{INK}" stroke-width="1.5"/>')
        text_at = max(end, right)
    parts.append(f'<text x="{text_at + 6:.1f}" y="{middle + 4.5:.1f}">{escape(bar.text)}</text>')
    return parts
