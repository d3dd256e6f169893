"""Which policies of many the overview shows: those that match, in an order, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from lapse.app import Health
from lapse.console.dashboard import PolicyView

PAGE_ROWS = 25
WORST_FIRST = (Health.BLOCKED, Health.LATE)
_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)


def _attention(view: PolicyView) -> tuple[int, str]:
    """Whatever needs attention comes first, the rest by name."""
    health = view.health.health
    return WORST_FIRST.index(health) if health in WORST_FIRST else len(WORST_FIRST), str(view.health.stored.table)


ORDERS: Mapping[str, Callable[[PolicyView], Any]] = {
    "attention": _attention,
    "table": lambda view: str(view.health.stored.table),
    "behind": lambda view: -view.health.promise_used,
    "rows": lambda view: -(view.rows or 0),
    "deleted": lambda view: -sum(view.per_day),
    "next": lambda view: view.health.starts_at or _LONG_AGO,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """`q` is part of a table's name, or a word for its health; `page` counts from 1."""

    q: str = ""
    sort: str = "attention"
    page: int = 1

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Listing:
        """What an address says; what makes no sense is passed over."""
        sort, page = query.get("sort", ""), query.get("page", "")
        return cls(
            q=query.get("q", "").strip()[:100],
            sort=sort if sort in ORDERS else "attention",
            page=max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
        )

    def address(self, **other: object) -> str:
        """Of the overview, with these or other words."""
        values = {"q": self.q, "sort": self.sort, "page": self.page} | other
        defaults = {"q": "", "sort": "attention", "page": 1}
        kept = {name: value for name, value in values.items() if value != defaults[name]}
        return f"/?{urlencode(kept)}" if kept else "/"

    def matching(self, policies: Sequence[PolicyView]) -> list[PolicyView]:
        wanted = self.q.lower()
        found = [
            view for view in policies if wanted in str(view.health.stored.table).lower() or _is_about(view, wanted)
        ]
        return sorted(found, key=ORDERS[self.sort])

    def shown(self, matching: Sequence[PolicyView]) -> Sequence[PolicyView]:
        last = max(1, self.pages(matching))
        begin = (min(self.page, last) - 1) * PAGE_ROWS
        return matching[begin : begin + PAGE_ROWS]

    @staticmethod
    def pages(matching: Sequence[PolicyView]) -> int:
        return -(-len(matching) // PAGE_ROWS)


def _is_about(view: PolicyView, word: str) -> bool:
    return bool(word) and word in (view.health.health.words, view.health.blocked and view.health.blocked.value)
