"""The known name that a mistyped one comes closest to."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CUTOFF = 0.8
"""High enough that a common beginning such as `tidb_ttl_` alone is no likeness."""
MOST_LISTED = 30
"""A longer list of names is no help to read."""


def suggest(name: str, known: Iterable[str], *, otherwise: str | None = None) -> str | None:
    """A hint: the nearest of the known names, or else `otherwise`."""
    by_folded = {each.lower(): each for each in known if each != name}
    near = get_close_matches(name.lower(), by_folded, n=1, cutoff=CUTOFF)
    return f"did you mean {by_folded[near[0]]}?" if near else otherwise


def suggest_or_list(name: str, known: Iterable[str], what: str) -> str | None:
    """The nearest, or all of them where there are not too many: `its columns are a, b`."""
    names = list(known)
    listed = f"{what} {', '.join(names)}" if 0 < len(names) <= MOST_LISTED else None
    return suggest(name, names, otherwise=listed)
