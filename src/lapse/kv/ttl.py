"""How long a row lives, in every form a caller may write it, and the instant that makes of it."""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from lapse.errors import InvalidValue
from lapse.model import interval
from lapse.model.interval import MILLISECOND, Interval

NEVER_MS = 2**63 - 1
"""The expiry of a row that never expires; later than every clock, so that reads need no second test."""

MAX_EXPIRY_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: beyond it an expiry could not be shown."""

DAY_S = 86_400
_USUAL_MS = 100 * 365 * DAY_S * 1000
"""A TTL below this ends before the year 10000."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Ttl(enum.Enum):
    DEFAULT = "default"
    """Whatever the store's default TTL is at the moment of the write."""
    NO_EXPIRY = "no expiry"

    __hash__ = object.__hash__  # the one of Enum is a call into Python, for every row that is written


TtlLike = Ttl | Interval | timedelta | datetime | str
PLAIN_TTLS = frozenset({Ttl, Interval, timedelta, str})
"""Types whose comparing and hashing runs no code of the caller's; a datetime's does, in its time zone."""


_parsed = lru_cache(maxsize=10_000)(interval.parse)
"""Rows have a few TTLs in turn: a text is read once."""


def read_duration(value: Interval | timedelta | str, *, name: str = "ttl") -> Interval:
    """Longer than zero."""
    if isinstance(value, str):
        length = _parsed(value, name=name)
    elif isinstance(value, Interval):
        length = value
    elif isinstance(value, timedelta):
        if value < timedelta(0):
            raise InvalidValue(name, value, "must not be negative")
        try:
            length = Interval(micros=value // _MICROSECOND)
        except InvalidValue as error:
            raise InvalidValue(name, value, error.allowed) from None
    else:
        raise InvalidValue(name, value, f"must be a duration, not {type(value).__name__}")
    if not length:
        raise InvalidValue(name, value, "must be longer than zero")
    return length


def millis_of(length: Interval) -> int:
    """Without its months. A part of a millisecond counts as a whole one: a row never expires early."""
    return -(-length.micros // MILLISECOND)


def read_default(value: Ttl | Interval | timedelta | str | None, *, name: str = "default_ttl") -> Interval | None:
    """A store's default: a duration, or None (also written `Ttl.NO_EXPIRY`) for rows that stay."""
    if value is None or value is Ttl.NO_EXPIRY:
        return None
    if isinstance(value, Ttl):
        raise InvalidValue(name, value, "must be a duration or Ttl.NO_EXPIRY")
    return read_duration(value, name=name)


def plain_ttl(ttl: TtlLike) -> TtlLike:
    """The same TTL, of a type that may be compared and hashed under the store's lock."""
    if type(ttl) in PLAIN_TTLS:
        return ttl
    if isinstance(ttl, datetime):
        if ttl.utcoffset() is None:
            raise InvalidValue("ttl", ttl, "must be an aware datetime", hint="add tzinfo=datetime.UTC")
        try:
            return from_millis(to_millis(ttl))
        except OverflowError:
            raise InvalidValue("ttl", ttl, "must end before the year 10000") from None
    if isinstance(ttl, timedelta):
        return timedelta(days=ttl.days, seconds=ttl.seconds, microseconds=ttl.microseconds)
    if isinstance(ttl, str):
        return str.__str__(ttl)
    allowed = "must be Ttl.DEFAULT, Ttl.NO_EXPIRY, a duration with a unit, a timedelta or an aware datetime"
    raise InvalidValue("ttl", ttl, allowed)


def expiry_ms(ttl: TtlLike, *, now_ms: int, default: Interval | None) -> int:
    """Every row may have another TTL: the usual ones take no more than some arithmetic."""
    if type(ttl) is timedelta:
        millis = (ttl.days * DAY_S + ttl.seconds) * 1000 - (-ttl.microseconds // 1000)
        if 0 < millis < _USUAL_MS:
            return now_ms + millis
    if isinstance(ttl, datetime):
        if (moment_ms := to_millis(ttl)) <= now_ms:
            raise InvalidValue("ttl", ttl.isoformat(), f"must be later than now ({from_millis(now_ms).isoformat()})")
        return moment_ms
    if ttl is Ttl.NO_EXPIRY:
        return NEVER_MS
    length = default if ttl is Ttl.DEFAULT else read_duration(ttl)
    if length is None:
        return NEVER_MS
    expiry = now_ms + millis_of(length)
    if length.is_calendar:
        try:
            expiry = to_millis(length.added_to(from_millis(now_ms)))
        except (OverflowError, ValueError):
            expiry = NEVER_MS
    if expiry > MAX_EXPIRY_MS:
        raise InvalidValue("ttl", str(length), "must end before the year 10000")
    return expiry


def to_millis(moment: datetime) -> int:
    """Milliseconds since 1970, rounded down; integers all the way, so that no expiry moves by a rounding."""
    since = moment - _EPOCH
    return (since.days * DAY_S + since.seconds) * 1000 + since.microseconds // 1000


def from_millis(millis: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=millis)
