"""The condition of a job: its terms are all asked for, and nothing that is NULL lets a row go."""

from __future__ import annotations

from lapse.engines.condition import Condition

EXPIRED = Condition(expired="at <= 5")


def test_an_expiry_alone_is_what_an_index_serves() -> None:
    assert EXPIRED.sql == "at <= 5"
    assert EXPIRED.is_time_alone


def test_every_term_is_asked_for() -> None:
    found = EXPIRED.requiring("a", "b").requiring("c")
    assert found.sql == "(at <= 5 AND a AND b AND c)"
    assert found.expired == "at <= 5"
    assert not found.is_time_alone


def test_what_is_left_out_is_left_out_where_it_is_true_alone() -> None:
    assert EXPIRED.but_not("held").sql == "(at <= 5 AND (held) IS NOT TRUE)"


def test_the_first_one_stays_as_it_is() -> None:
    EXPIRED.requiring("a")
    assert EXPIRED.required == ()
