"""Durations with calendar months, read from and written in every dialect.

An interval is whole months plus microseconds. Days are 24 hours: Lapse does its arithmetic either on instants in UTC
or on wall-clock time without a zone, and in both a day is 24 hours. So intervals that mean the same compare equal
(`1h30m` and `90 minutes`), while `1 month` and `30 days` do not.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from math import ceil

from lapse.errors import InvalidValue

MICROSECOND = 1
MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY

MONTHS_PER_YEAR = 12
MAX_YEARS = 1_000
_MAX_MICROS = MAX_YEARS * 366 * DAY

ALLOWED = "must be a duration with a unit, such as '30 days', '1h30m', 'P3M' or 'INTERVAL 3 MONTH'"


@dataclass(frozen=True, kw_only=True, slots=True, order=False)
class Interval:
    """`months` and `micros` are never negative."""

    months: int = 0
    micros: int = 0

    def __post_init__(self) -> None:
        if self.months < 0 or self.micros < 0:
            raise InvalidValue("interval", f"{self.months} months {self.micros} µs", "must not be negative")
        if self.months > MAX_YEARS * MONTHS_PER_YEAR or self.micros > _MAX_MICROS:
            raise InvalidValue(
                "interval", f"{self.months} months {self.micros} µs", f"must be at most {MAX_YEARS} years"
            )

    def __bool__(self) -> bool:
        return bool(self.months or self.micros)

    def __str__(self) -> str:
        return self.to_words()

    @property
    def is_calendar(self) -> bool:
        return self.months > 0

    @property
    def timedelta(self) -> timedelta:
        """The part without months."""
        return timedelta(microseconds=self.micros)

    @property
    def approximate_seconds(self) -> float:
        """A month counted as 30.44 days; for estimates and ordering, never for deciding expiry."""
        return self.months * 30.44 * 86_400 + self.micros / SECOND

    def added_to(self, moment: datetime) -> datetime:
        return _shift_months(moment, self.months) + self.timedelta

    def subtracted_from(self, moment: datetime) -> datetime:
        """`moment - interval`, never later than any `c` with `c + interval <= moment` allows.

        Clamping to the end of a shorter month can only make the result earlier, so a row is never expired early.
        """
        return _shift_months(moment - self.timedelta, -self.months)

    def to_words(self) -> str:
        """`3 months 2 days 5 minutes`: understood by PostgreSQL, CockroachDB and `parse`."""
        years, months = divmod(self.months, MONTHS_PER_YEAR)
        words = [_count(years, "year"), _count(months, "month")]
        rest = self.micros
        for unit, name in ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")):
            count, rest = divmod(rest, unit)
            words.append(_count(count, name))
        if rest:
            words.append(f"{_decimal(rest, SECOND)} second" + ("" if rest == SECOND else "s"))
        return " ".join(word for word in words if word) or "0 seconds"

    def to_mysql(self) -> str:
        """`INTERVAL 3 MONTH`: one unit, the largest that divides; refused for months mixed with time."""
        if self.months and self.micros:
            raise InvalidValue(
                "interval",
                str(self),
                "cannot be written as one MySQL or TiDB interval: it mixes months and time",
            )
        if self.months:
            years, months = divmod(self.months, MONTHS_PER_YEAR)
            return f"INTERVAL {self.months} MONTH" if months else f"INTERVAL {years} YEAR"
        for unit, name in ((DAY, "DAY"), (HOUR, "HOUR"), (MINUTE, "MINUTE"), (SECOND, "SECOND")):
            if self.micros % unit == 0:
                return f"INTERVAL {self.micros // unit} {name}"
        return f"INTERVAL {self.micros} MICROSECOND"

    def to_seconds(self) -> int:
        """Whole seconds, as MyRocks counts; refused where it would change the meaning."""
        if self.months or self.micros % SECOND:
            raise InvalidValue("interval", str(self), "cannot be written as whole seconds")
        return self.micros // SECOND

    def to_go(self) -> str:
        """`1d2h30m`: TiDB's TTL_JOB_INTERVAL."""
        if self.months or self.micros % MINUTE:
            raise InvalidValue("interval", str(self), "cannot be written as days, hours and minutes")
        rest, text = self.micros, ""
        for unit, letter in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
            count, rest = divmod(rest, unit)
            text += f"{count}{letter}" if count else ""
        return text or "0m"


def parse(text: str, *, name: str = "interval") -> Interval:
    """Read a duration in any dialect; `name` is the parameter that an error names."""
    body = text.strip()
    keyword = _INTERVAL_KEYWORD.fullmatch(body)
    if keyword and keyword["plain"] is not None:
        return parse(keyword["plain"], name=name)
    if keyword:
        return from_unit(keyword["quantity"], keyword["unit"], name=name)
    if body.lower().endswith("::interval"):
        return parse(body[: -len("::interval")].strip().strip("'"), name=name)
    # Zero is a duration, too: what counts is whether the text could be read.
    result = _parse_iso(body, name)
    if result is None:
        result = _parse_words(body, name)
    if result is None:
        raise _refusal(text, name)
    return result


def from_unit(quantity: str, unit: str, *, name: str = "interval") -> Interval:
    """MySQL's `INTERVAL quantity unit`, composite units such as `'1:30' HOUR_MINUTE` included."""
    result = _parse_mysql(quantity, unit, name)
    if result is None:
        raise InvalidValue(name, f"{quantity} {unit}", f"has an unknown unit; known are {', '.join(MYSQL_UNITS)}")
    return result


def from_seconds(seconds: int | Decimal) -> Interval:
    return Interval(micros=int(seconds * SECOND))


_UNITS: dict[str, tuple[int, int]] = {}
"""Unit word → (months, micros)."""

for _names, _months, _micros in (
    ("y yr yrs year years", 12, 0),
    ("mo mon mons month months", 1, 0),
    ("quarter quarters", 3, 0),
    ("w week weeks", 0, WEEK),
    ("d day days", 0, DAY),
    ("h hr hrs hour hours", 0, HOUR),
    ("m min mins minute minutes", 0, MINUTE),
    ("s sec secs second seconds", 0, SECOND),
    ("ms msec msecs millisecond milliseconds", 0, MILLISECOND),
    ("us µs usec usecs microsecond microseconds", 0, MICROSECOND),
):
    for _name in _names.split():
        _UNITS[_name] = (_months, _micros)

MYSQL_UNITS = (
    "MICROSECOND SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR SECOND_MICROSECOND MINUTE_MICROSECOND MINUTE_SECOND "
    "HOUR_MICROSECOND HOUR_SECOND HOUR_MINUTE DAY_MICROSECOND DAY_SECOND DAY_MINUTE DAY_HOUR YEAR_MONTH"
).split()

_LADDER = ("YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "MICROSECOND")
"""The units of a composite quantity, largest first: DAY_MINUTE is the slice from DAY to MINUTE."""

_INTERVAL_KEYWORD = re.compile(
    r"interval\s+(?:(?P<quantity>'[^']*'|[-+]?[\d.]+)\s+(?P<unit>[a-z_]+)|'(?P<plain>[^']*)')", re.IGNORECASE
)
_QUANTITY = re.compile(r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})")
_PAIR = re.compile(r"\s*([-+]?\d+(?:\.\d+)?|[-+]?\.\d+)\s*([a-zµ]+)\s*,?", re.IGNORECASE)
_CLOCK = re.compile(r"\s*([-+]?)(\d+):([0-5]?\d)(?::([0-5]?\d(?:\.\d+)?))?")
_ISO = re.compile(
    r"P(?:(?P<y>\d+(?:[.,]\d+)?)Y)?(?:(?P<mo>\d+(?:[.,]\d+)?)M)?(?:(?P<w>\d+(?:[.,]\d+)?)W)?(?:(?P<d>\d+(?:[.,]\d+)?)D)?"
    r"(?:T(?:(?P<h>\d+(?:[.,]\d+)?)H)?(?:(?P<mi>\d+(?:[.,]\d+)?)M)?(?:(?P<s>\d+(?:[.,]\d+)?)S)?)?"
)


def _parse_words(body: str, name: str) -> Interval | None:
    """PostgreSQL's and compact forms: `3 months 2 days 01:30:00`, `1h30m`, `-1 day` (refused)."""
    position, months, micros, found = 0, Decimal(0), Decimal(0), False
    while position < len(body):
        clock = _CLOCK.match(body, position)
        if clock:
            sign, hours, minutes, seconds = clock.groups()
            part = Decimal(hours) * HOUR + Decimal(minutes) * MINUTE + Decimal(seconds or 0) * SECOND
            micros += -part if sign == "-" else part
            position, found = clock.end(), True
            continue
        pair = _PAIR.match(body, position)
        unit = _UNITS.get(pair[2].lower()) if pair else None
        if pair is None or unit is None:
            return None
        quantity = Decimal(pair[1])
        months += quantity * unit[0]
        micros += quantity * unit[1]
        position, found = pair.end(), True
    return _whole(months, micros, body, name) if found else None


def _parse_iso(body: str, name: str) -> Interval | None:
    match = _ISO.fullmatch(body.upper())
    if match is None or body.upper() in {"P", "PT"} or body.upper().endswith("T"):
        return None
    value = {key: Decimal((text or "0").replace(",", ".")) for key, text in match.groupdict().items()}
    months = value["y"] * MONTHS_PER_YEAR + value["mo"]
    micros = value["w"] * WEEK + value["d"] * DAY + value["h"] * HOUR + value["mi"] * MINUTE + value["s"] * SECOND
    return _whole(months, micros, body, name)


def _parse_mysql(quantity: str | None, unit: str | None, name: str) -> Interval | None:
    if quantity is None or unit is None or unit.upper() not in MYSQL_UNITS:
        return None
    quantity, unit = quantity.strip("'\" "), unit.upper()
    if "_" not in unit:
        if _QUANTITY.fullmatch(quantity) is None:
            raise _refusal(f"{quantity} {unit}", name)
        number = Decimal(quantity)
        if unit != "SECOND" and number != number.to_integral_value():
            # MySQL rounds it, PostgreSQL cuts it, and words such as '1.5 days' mean 36 hours.
            raise InvalidValue(
                name, f"{quantity} {unit}", "must be a whole number", hint="use a smaller unit: INTERVAL 36 HOUR"
            )
        months, micros = _UNITS[unit.lower()]
        return _whole(number * months, number * micros, f"{quantity} {unit}", name)
    first, last = unit.split("_")
    steps = _LADDER[_LADDER.index(first) : _LADDER.index(last) + 1]
    if quantity.startswith("-"):
        raise InvalidValue(name, f"{quantity} {unit}", "must not be negative")
    digits = re.findall(r"\d+", quantity)
    if not digits or len(digits) > len(steps) or not re.fullmatch(r"[\d\s:.\-,]+", quantity):
        raise InvalidValue(name, quantity, f"must have at most {len(steps)} numbers, as {unit} says")
    months_total, micros_total = 0, 0
    # MySQL fills from the right: '5' DAY_SECOND is five seconds.
    for step, number_text in zip(steps[-len(digits) :], digits, strict=True):
        if step == "MICROSECOND":
            micros_total += int(number_text.ljust(6, "0")[:6])
            continue
        months, micros = _UNITS[step.lower()]
        months_total += int(number_text) * months
        micros_total += int(number_text) * micros
    return Interval(months=months_total, micros=micros_total)


def _whole(months: Decimal, micros: Decimal, text: str, name: str) -> Interval:
    """Fractions of a month have no calendar meaning, so they are refused rather than rounded."""
    if months < 0 or micros < 0:
        raise InvalidValue(name, text, "must not be negative")
    if months > MAX_YEARS * MONTHS_PER_YEAR or micros > _MAX_MICROS:
        raise InvalidValue(name, text, f"must be at most {MAX_YEARS} years")
    if months != int(months):
        raise InvalidValue(name, text, "must not have a fraction of a month or year that is no whole month")
    # Less than a microsecond is rounded up: a row is never expired early.
    return Interval(months=int(months), micros=ceil(micros))


def _refusal(text: str, name: str) -> InvalidValue:
    bare = re.fullmatch(r"\s*[-+]?[\d.]+\s*", text) is not None
    example = f"'{text.strip()}s' for seconds, '{text.strip()} min', '{text.strip()} h' or '{text.strip()} days'"
    return InvalidValue(name, text, f"has no unit; write {example}" if bare else ALLOWED)


def _shift_months(moment: datetime, months: int) -> datetime:
    if not months:
        return moment
    index = moment.year * MONTHS_PER_YEAR + (moment.month - 1) + months
    year, month = divmod(index, MONTHS_PER_YEAR)
    day = min(moment.day, calendar.monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}" if number else ""


def _decimal(micros: int, unit: int) -> str:
    return format((Decimal(micros) / unit).normalize(), "f")
