"""Numbers for the charts: what uPlot draws, and the same as a table for those who cannot see it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from lapse.app.forecast import Forecast
from lapse.console.dashboard import days


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """`colour` is a name of the palette."""

    title: str
    unit: str
    colour: str = "accent"
    days: tuple[date, ...]
    values: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.values)

    @property
    def is_empty(self) -> bool:
        return not any(self.values)

    @property
    def rows(self) -> list[tuple[date, int]]:
        return list(zip(self.days, self.values, strict=True))

    @property
    def data(self) -> str:
        """As JSON: midnights in seconds of the epoch, and the values."""
        moments = [int(datetime.combine(day, time(), UTC).timestamp()) for day in self.days]
        return json.dumps({"x": moments, "y": list(self.values), "unit": self.unit, "colour": self.colour})


def deleted_chart(now: datetime, per_day: dict[date, int], count: int) -> Chart:
    wanted = days(now, count)
    return Chart(
        title=f"Rows deleted per day, last {count} days",
        unit="rows",
        days=tuple(wanted),
        values=tuple(per_day.get(day, 0) for day in wanted),
    )


def forecast_chart(found: Forecast) -> Chart:
    """Rows that expire on each of the coming days, from `Lapse.forecast`."""
    return Chart(
        title=f"Rows expiring per day, next {len(found.days)} days",
        unit="rows",
        colour="info",
        days=tuple(day.start.date() for day in found.days),
        values=tuple(day.rows for day in found.days),
    )
