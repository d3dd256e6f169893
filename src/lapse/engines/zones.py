"""Times stored without a zone, on a server whose own zone is not UTC: what they mean is asked, never guessed."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

from lapse.engines.base import BoundPolicy
from lapse.errors import Blocked, ZoneMissing
from lapse.model.blocked import BlockCode
from lapse.model.policy import ColumnExpiry

_UTC = re.compile(r"(?:etc/)?(?:utc|uct|universal|zulu|gmt(?:[+-]?0)?|greenwich)|[+-]?0{1,2}(?::?00)?", re.IGNORECASE)
_OFFSET = re.compile(r"(?P<sign>[+-])(?P<hours>\d{1,2})(?::?(?P<minutes>\d{2}))?")
_POSIX = re.compile(r"<[^>]+>(?P<sign>[+-]?)(?P<hours>\d{1,2})(?::(?P<minutes>\d{2}))?")
"""How PostgreSQL shows an offset: `<-08>+08` is eight hours behind UTC."""


def is_utc(zone: str) -> bool:
    return _UTC.fullmatch(zone.strip()) is not None


def refuse_guess(declared: BoundPolicy, zone: str | None) -> None:
    """At declaration. `zone` is the server's, where times could be meant in it; raises ZoneMissing then."""
    if zone is not None:
        expiry = declared.policy.expiry
        text = f"{expiry.column} + INTERVAL '{expiry.after}'" if isinstance(expiry, ColumnExpiry) else expiry.text
        how = f"ttl_expiration_expression = '{text.replace(chr(39), chr(39) * 2)}', "
        raise ZoneMissing(_why(declared, zone), zone=as_time_zone(zone), hint=_hint(declared, zone, how))


def block_guess(declared: BoundPolicy, zone: str | None) -> None:
    """Before a job: the server's zone was changed since, or the policy is older than this question."""
    if zone is not None:
        raise Blocked(BlockCode.COLUMN_CHANGED, _why(declared, zone), hint=_hint(declared, zone))


def _why(declared: BoundPolicy, zone: str) -> str:
    return (
        f"table {declared.table.name} stores times without a zone, and the server's zone is {zone}: "
        "Lapse does not guess in which zone they are meant"
    )


def _hint(declared: BoundPolicy, zone: str, how: str = "") -> str:
    ready = as_time_zone(zone)
    name = ready or "Area/City"
    statement = f"ALTER TABLE {declared.table.name.whole} SET ({how}ttl_time_zone = '{name}')"
    if ready is None:
        return f"{statement} with the server's region, or with 'UTC' if they are in UTC"
    other = "" if ready == zone else f", which is {zone}, or with the server's region"
    return f"{statement}{other}, or with 'UTC' if they are in UTC"


def as_time_zone(zone: str) -> str | None:
    """A server's zone as a value of `ttl_time_zone`; None where it has no such name."""
    offset = _OFFSET.fullmatch(zone)
    posix = _POSIX.fullmatch(zone)
    found = offset or posix
    if found is None:
        return zone if _is_known(zone) else None
    if int(found["minutes"] or 0):
        return None
    ahead = (found["sign"] != "-") == (found is offset)
    name = f"Etc/GMT{'-' if ahead else '+'}{int(found['hours'])}"
    return name if _is_known(name) else None


def _is_known(zone: str) -> bool:
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return False
    return True
