"""The condition of a job: which rows it may delete. Every engine compiles it once, and everything asks that one value.

What finds, counts, forecasts, hides or deletes rows takes `sql` from here, so one more term of the condition is added
where an engine builds it, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """True for the rows that may be deleted, and for no other.

    `expired` is SQL for "its time has come", in a form that an index on the expiry column can serve. `required` are the
    terms that have to be true beside it; a row for which one of them is false or NULL stays.
    """

    expired: str
    required: tuple[str, ...] = ()

    @property
    def sql(self) -> str:
        return f"({' AND '.join((self.expired, *self.required))})" if self.required else self.expired

    @property
    def is_time_alone(self) -> bool:
        """Do the times of a row alone decide, so that a range of times tells about every row in it?"""
        return not self.required

    def requiring(self, *terms: str) -> Self:
        return replace(self, required=(*self.required, *terms))

    def but_not(self, *terms: str) -> Self:
        return self.requiring(none_of(terms)) if terms else self


def none_of(terms: Sequence[str]) -> str:
    """True where none of them is true: what is not known is not true."""
    return f"({' OR '.join(terms)}) IS NOT TRUE"
