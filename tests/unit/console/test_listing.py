"""The overview's lines and charts: which policies are shown in which order, and the numbers that are drawn."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from lapse.app.forecast import Forecast, ForecastDay
from lapse.console.charts import Chart, deleted_chart, forecast_chart
from lapse.console.dashboard import PACE_SECONDS, JobRates, LiveJob, Overview, PolicyView
from lapse.console.listing import PAGE_ROWS, Listing
from lapse.engines.base import Footprint
from lapse.model.blocked import BlockCode
from lapse.model.policy import Policy
from lapse.model.table import TableName
from lapse.runner.promise import Health
from tests.unit.app.build import health, promise, status
from tests.unit.runner.build import NOW


def view(
    table: str = "events",
    state: Health = Health.ON_TIME,
    *,
    rows: int | None = None,
    per_day: tuple[int, ...] = (0, 0),
    late: float = 0.0,
    code: BlockCode | None = None,
    **fields: Any,
) -> PolicyView:
    found = health(status(table, promise(state, late=late, code=code), **fields))
    return PolicyView(health=found, footprint=Footprint(rows=rows), per_day=per_day)


def names(listing: Listing, *views: PolicyView) -> list[str]:
    return [str(each.health.stored.table) for each in listing.matching(views)]


# Which lines


def test_what_needs_attention_comes_first_and_the_rest_by_name() -> None:
    views = [view("d"), view("c", Health.PAUSED), view("b", Health.LATE), view("a", Health.BLOCKED)]
    assert names(Listing(), *views) == ["a", "b", "c", "d"]
    assert names(Listing(), view("a"), view("z", Health.LATE), view("y", Health.BLOCKED)) == ["y", "z", "a"]


@pytest.mark.parametrize(
    ("sort", "order"),
    [("table", "abc"), ("behind", "cab"), ("rows", "bca"), ("deleted", "acb"), ("next", "bac")],
)
def test_other_orders(sort: str, order: str) -> None:
    views = [
        view("a", late=2, rows=None, per_day=(9, 9), next_run_at=NOW),
        view("b", late=1, rows=500, per_day=(0, 1), next_run_at=None),
        view("c", late=3, rows=20, per_day=(3, 3), next_run_at=NOW + timedelta(hours=1)),
    ]
    assert names(Listing(sort=sort), *views) == list(order)


@pytest.mark.parametrize(
    ("q", "found"),
    [
        ("", ["audit_log", "events", "Log_lines"]),
        ("LOG", ["audit_log", "Log_lines"]),
        ("late", ["events"]),
        ("on time", ["audit_log", "Log_lines"]),
        ("locked", ["events"]),
        ("nothing", []),
    ],
)
def test_a_search_is_for_a_part_of_the_name_or_a_word_for_the_state(q: str, found: list[str]) -> None:
    views = [view("audit_log"), view("Log_lines"), view("events", Health.LATE, code=BlockCode.LOCKED)]
    assert sorted(names(Listing(q=q), *views), key=str.lower) == found


@pytest.mark.parametrize(
    ("query", "listing"),
    [
        ({}, Listing()),
        ({"q": " log ", "sort": "rows", "page": "3"}, Listing(q="log", sort="rows", page=3)),
        ({"sort": "password", "page": "-1"}, Listing()),
        ({"page": "0"}, Listing()),
        ({"page": "9999999"}, Listing()),
        ({"page": "²"}, Listing()),
        ({"q": "x" * 500}, Listing(q="x" * 100)),
    ],
)
def test_an_address_that_makes_no_sense_is_passed_over(query: dict[str, str], listing: Listing) -> None:
    assert Listing.read(query) == listing


def test_an_address_says_only_what_is_not_the_default() -> None:
    assert Listing().address() == "/"
    assert Listing(q="a&b", page=2).address() == "/?q=a%26b&page=2"
    assert Listing(q="log", page=2).address(page=1, sort="rows") == "/?q=log&sort=rows"


def test_pages() -> None:
    views = [view(f"t{number:03}") for number in range(PAGE_ROWS + 2)]
    assert Listing.pages(views) == 2
    assert (len(Listing().shown(views)), len(Listing(page=2).shown(views))) == (PAGE_ROWS, 2)
    # A page that is gone, as tables were removed, is the last one.
    assert Listing(page=99).shown(views) == Listing(page=2).shown(views)
    assert list(Listing().shown([])) == []


# The overview


def overview(*views: PolicyView, jobs: int = 0) -> Overview:
    live: Any = tuple(LiveJob(progress=None, rate=0.0) for _ in range(jobs))  # type: ignore[arg-type]
    return Overview(now=NOW, policies=views, jobs=live, workers_alive=1, workers=1)


def test_what_is_read_out_is_what_matters() -> None:
    assert overview(view()).sentence == "0 active jobs."
    found = overview(view(), view("b", Health.LATE), view("c", Health.BLOCKED), view("d", Health.LATE), jobs=1)
    assert found.sentence == "1 active job, 2 late, 1 blocked."


def test_days_of_all_tables_add_up() -> None:
    assert overview(view(per_day=(1, 2)), view("b", per_day=(10, 20))).per_day == (11, 22)
    assert overview().per_day == ()


# The live rate


def test_the_rate_is_that_of_the_last_moments() -> None:
    pace = JobRates()
    assert pace.rate(1, 0, at=100.0) is None
    assert pace.rate(1, 10, at=100.1) is None
    assert pace.rate(1, 100, at=110.0) == 10.0
    # A burst that is long over does not count any more.
    assert pace.rate(1, 100, at=100.0 + 2 * PACE_SECONDS) == pytest.approx(0.0)


def test_jobs_do_not_mix_and_are_forgotten() -> None:
    pace = JobRates()
    pace.rate(1, 0, at=100.0)
    pace.rate(2, 1000, at=100.0)
    assert pace.rate(2, 1010, at=101.0) == 10.0
    pace.forget_others({2})
    assert pace.rate(1, 50, at=101.0) is None
    assert pace.rate(2, 1020, at=102.0) == 10.0


# Charts


def test_days_without_a_job_are_zero() -> None:
    chart = deleted_chart(NOW, {date(2026, 3, 1): 5, date(2026, 2, 27): 7, date(2020, 1, 1): 99}, 4)
    assert chart.rows == [
        (date(2026, 2, 26), 0),
        (date(2026, 2, 27), 7),
        (date(2026, 2, 28), 0),
        (date(2026, 3, 1), 5),
    ]
    assert (chart.total, chart.is_empty) == (12, False)
    assert deleted_chart(NOW, {}, 4).is_empty


def test_what_is_drawn_has_the_midnights_of_its_days() -> None:
    chart = Chart(title="x", unit="rows", days=(date(2026, 3, 1),), values=(5,))
    midnight = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
    assert json.loads(chart.data) == {"x": [midnight], "y": [5], "unit": "rows", "colour": "accent"}


def test_a_forecast_as_a_chart() -> None:
    days = tuple(
        ForecastDay(start=NOW + timedelta(days=number), end=NOW + timedelta(days=number + 1), rows=number, bytes=None)
        for number in range(3)
    )
    forecast = Forecast(
        table=TableName("events"),
        policy=Policy(expression="at"),
        at=NOW,
        ttl=None,
        rows=9,
        bytes=None,
        expired=0,
        days=days,
        steady=None,
        exact=True,
        method="scan",
        margin=0,
    )
    chart = forecast_chart(forecast)
    assert (chart.title, chart.values, chart.days[0]) == (
        "Rows expiring per day, next 3 days",
        (0, 1, 2),
        date(2026, 3, 1),
    )
