"""Server error numbers become Lapse's errors, and say what to do."""

from __future__ import annotations

import pytest
from pymysql import err
from sqlalchemy.exc import DBAPIError

from lapse.engines.mysql.errors import translate
from lapse.errors import (
    DatabaseError,
    DatabaseUnavailable,
    Drift,
    Interrupted,
    LapseError,
    Locked,
    NotPermitted,
    Retryable,
    RowUndeletable,
    TooSlow,
)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1205, Locked),
        (1213, Retryable),
        (1969, TooSlow),
        (1197, Retryable),
        (1317, Interrupted),
        (1451, RowUndeletable),
        (1644, RowUndeletable),
        (1054, Drift),
        (1146, Drift),
        (1735, Drift),
        (2013, DatabaseUnavailable),
        (1047, DatabaseUnavailable),
        (1290, DatabaseUnavailable),
        (1045, DatabaseUnavailable),
        (1142, NotPermitted),
        (8121, NotPermitted),
        (9007, Retryable),
        (8028, Retryable),
        (1064, DatabaseError),
    ],
)
def test_numbers(number: int, kind: type[LapseError]) -> None:
    found = translate(DBAPIError("SELECT 1", (), err.OperationalError(number, "text")))
    assert type(found) is kind
    assert "text" in found.message or kind is Interrupted


def test_a_lost_connection_is_unavailable() -> None:
    error = DBAPIError("SELECT 1", (), err.OperationalError(0, ""), connection_invalidated=True)
    assert isinstance(translate(error), DatabaseUnavailable)


def test_a_trigger_that_breaks_a_constraint_holds_its_row() -> None:
    assert isinstance(translate(DBAPIError("DELETE", (), err.IntegrityError(1062, "twice"))), RowUndeletable)


def test_what_tidb_has_tried_often_enough_may_be_tried_again() -> None:
    error = err.OperationalError(1105, "pessimistic lock retry limit reached")
    assert isinstance(translate(DBAPIError("UPDATE t", (), error)), Retryable)
