"""The condition of a job: which rows it may delete. Every engine compiles it once, and everything asks that one value.

What finds, counts, forecasts, hides or deletes rows takes `sql` from here. One more term of it is added in one place:
an expression that has to be true to `BoundPolicy.required`, which every engine compiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """True for the rows that may be deleted, and for no other.

    `expired` is SQL for "its time has come", in a form that an index on the expiry column can serve. `required` are the
    terms that have to be true beside it; a row for which one of them is false or NULL stays. `surplus` is one more such
    term, for `ttl_keep_last`: it reads other rows of the table.
    """

    expired: str
    required: tuple[str, ...] = ()
    surplus: str = ""

    @property
    def sql(self) -> str:
        return _all_of(self.expired, *self.required, self.surplus)

    @property
    def of_the_row(self) -> str:
        """The part that the row alone decides."""
        return _all_of(self.expired, *self.required)

    @property
    def is_time_alone(self) -> bool:
        """Do the times of a row alone decide, so that a range of times tells about every row in it?"""
        return not self.required and not self.surplus

    def requiring(self, *terms: str) -> Self:
        return replace(self, required=(*self.required, *terms))

    def but_not(self, *terms: str) -> Self:
        return self.requiring(none_of(terms)) if terms else self


def _all_of(*terms: str) -> str:
    written = [term for term in terms if term]
    return f"({' AND '.join(written)})" if len(written) > 1 else written[0]


def none_of(terms: Sequence[str]) -> str:
    """True where none of them is true: what is not known is not true."""
    return f"({' OR '.join(terms)}) IS NOT TRUE"
