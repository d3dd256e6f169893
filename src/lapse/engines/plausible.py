"""Which values can be times at all. The others say "never", or nothing, and no row expires by them.

Applications write "never" in many ways: the zero date, 0 and -1, ±infinity, the zero time of Go and .NET (year 1), the
end of the year 9999. A row with such a value is kept.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lapse.model.table import TimeFormat

EARLIEST = datetime(1000, 1, 1, tzinfo=UTC)
"""Where MySQL's DATETIME begins."""
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
NEVER = datetime(5000, 1, 1, tzinfo=UTC)
"""What such a value counts as inside an expression: no interval moves it into the past or out of a type's range."""

BANDS = {
    TimeFormat.UNIX: (100_000_000, 26_000_000_000),
    TimeFormat.UNIX_MS: (100_000_000_000, 26_000_000_000_000),
    TimeFormat.JULIAN: (2_086_303, 5_373_120),
}
"""Numbers that are times, by format; the second bound is not. Seconds and milliseconds from the years 1973 to 2793 fall
into exactly one of them, so a number tells its own unit, and a wrong unit expires nothing."""

_DAY_31 = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_DAY_30 = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_FEBRUARY = "02-(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = f"(?:[0-9]{{4}}-(?:{_DAY_31}|{_DAY_30}|{_FEBRUARY})|{_LEAP_YEAR}-02-29)"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.][0-9]{1,9})?)?"
_OFFSET = "(?:[Zz]|[+-](?:0[0-9]|1[0-4])(?::?[0-5][0-9])?)"

ISO_TIME = f"^{_DATE}(?:[T ]{_CLOCK}{_OFFSET}?)?$"
"""Text that is a time in ISO 8601: a date that exists, perhaps a time of day, perhaps an offset. PostgreSQL, MariaDB
and MySQL read this regular expression alike, and convert without an error what it accepts."""
ISO_OFFSET = f":[0-9.:]+{_OFFSET}$"
"""Of such a text: is there an offset?"""
NO_YEAR = "^(?:0|9999)"
"""Of such a text: is it "never"?"""
