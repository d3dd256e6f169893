"""Numbers, times and sizes as people read them; filters of the templates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NOTHING = "–"
_GLUE = "\u00a0"
"""A number and its unit stay on one line."""
_UNITS = ((86400.0, "day", "days"), (3600.0, "h", "h"), (60.0, "min", "min"), (1.0, "s", "s"))


def number(value: float | None) -> str:
    """12,345 in full."""
    return NOTHING if value is None else f"{value:,.0f}"


def compact(value: float | None) -> str:
    """12.3 k: three digits are enough to compare."""
    if value is None:
        return NOTHING
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.0f}{_GLUE}{unit}" if scaled >= 100 else f"{scaled:.1f}{_GLUE}{unit}"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def rows(value: float | None) -> str:
    return f"{number(value)} {_row_or_rows(value)}"


def compact_rows(value: float | None) -> str:
    return f"{compact(value)} {_row_or_rows(value)}"


def _row_or_rows(value: float | None) -> str:
    return "row" if value == 1 else "rows"


def size(value: int | None) -> str:
    if value is None:
        return NOTHING
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            digits = 0 if unit == "B" or amount >= 100 else 1
            return f"{amount:.{digits}f}{_GLUE}{unit}"
        amount /= 1024
    raise AssertionError


def measure(value: float | None, unit: str) -> str:
    """A gauge's value: bytes as sizes, seconds as durations, shares as they are, all else in three digits."""
    if value is None:
        return NOTHING
    match unit.strip():
        case "B" | "bytes":
            return size(int(value))
        case "B/s":
            return f"{size(int(value))}/s"
        case "s":
            return duration(float(value))
        case "%":
            return f"{value:.0f}{_GLUE}%"
    return compact(value) + (f"{_GLUE}{unit.strip()}" if unit.strip() else "")


def duration(value: timedelta | float | None) -> str:
    """The one or two largest units."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 1:
        return f"{seconds * 1000:.0f}{_GLUE}ms" if seconds > 0 else f"0{_GLUE}s"
    for index, (length, one, many) in enumerate(_UNITS):
        if seconds >= length:
            whole, rest = divmod(seconds, length)
            text = f"{whole:.0f}{_GLUE}{one if whole == 1 else many}"
            if index + 1 < len(_UNITS) and whole < 10:
                smaller = int(rest // _UNITS[index + 1][0])
                if smaller:
                    text += f" {smaller}{_GLUE}{_UNITS[index + 1][1]}"
            return text
    raise AssertionError


def minutes(value: timedelta) -> str:
    """A duration to the minute: what is shown of a table changes when something has changed, not with every second."""
    whole = value - value % timedelta(minutes=1)
    return duration(whole) if whole else f"under 1{_GLUE}min"


def percent(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value * 100:.0f}{_GLUE}%" if value >= 0.1 or value == 0 else f"{value * 100:.1f}{_GLUE}%"


def moment(value: datetime | None) -> str:
    """An instant in full."""
    return NOTHING if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def relative(value: datetime | None, now: datetime) -> str:
    """`in 12 min`, `3 h ago`."""
    if value is None:
        return NOTHING
    seconds = (value - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in{_GLUE}{_coarse(seconds)}" if seconds > 0 else f"{_coarse(-seconds)}{_GLUE}ago"


def _coarse(seconds: float) -> str:
    for length, one, many in _UNITS:
        if seconds >= length:
            whole = int(seconds // length)
            return f"{whole}{_GLUE}{one if whole == 1 else many}"
    return f"1{_GLUE}s"


FILTERS = {
    "measure": measure,
    "minutes": minutes,
    "number": number,
    "compact": compact,
    "rows": rows,
    "compact_rows": compact_rows,
    "size": size,
    "duration": duration,
    "percent": percent,
    "moment": moment,
    "relative": relative,
}
