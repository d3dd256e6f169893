"""What the driver's errors mean."""

from __future__ import annotations

import sys

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from lapse.engines import open_engine
from lapse.engines.postgres.errors import CATALOG_GRANTS, translate
from lapse.errors import (
    BadData,
    DatabaseError,
    DatabaseUnavailable,
    Drift,
    Interrupted,
    LapseError,
    Locked,
    Retryable,
    TooSlow,
    UnsupportedUrl,
)


def error(kind: type[psycopg.Error], text: str = "words") -> DBAPIError:
    return DBAPIError("SELECT 1", None, kind(text))


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (psycopg.errors.SerializationFailure, Retryable),
        (psycopg.errors.DeadlockDetected, Retryable),
        (psycopg.errors.LockNotAvailable, Locked),
        (psycopg.errors.QueryCanceled, TooSlow),
        (psycopg.errors.AdminShutdown, DatabaseUnavailable),
        (psycopg.errors.TooManyConnections, DatabaseUnavailable),
        (psycopg.errors.InvalidPassword, DatabaseUnavailable),
        (psycopg.errors.ConnectionFailure, DatabaseUnavailable),
        (psycopg.OperationalError, DatabaseUnavailable),
        (psycopg.errors.UndefinedTable, Drift),
        (psycopg.errors.UndefinedColumn, Drift),
        (psycopg.errors.DivisionByZero, BadData),
        (psycopg.errors.SyntaxError, DatabaseError),
    ],
)
def test_kinds(kind: type[psycopg.Error], wanted: type[LapseError]) -> None:
    assert type(translate(error(kind))) is wanted


def test_a_cancelled_statement_is_told_from_a_timeout() -> None:
    cancelled = error(psycopg.errors.QueryCanceled, "canceling statement due to user request")
    assert type(translate(cancelled)) is Interrupted


def test_hints() -> None:
    denied = psycopg.errors.InsufficientPrivilege
    assert translate(error(denied, "permission denied for schema lapse_ttl")).hint == CATALOG_GRANTS
    assert translate(error(denied, "permission denied for table lapse_job")).hint == CATALOG_GRANTS
    assert 'SCHEMA "app"' in (translate(error(denied, "permission denied for schema app")).hint or "")
    assert "primary" in (translate(error(psycopg.errors.ReadOnlySqlTransaction)).hint or "")


def test_every_spelling_of_the_url() -> None:
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        engine = open_engine(f"{scheme}://me:secret@nowhere.invalid/db")
        assert engine.name == "postgres"
        engine.close()


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UnsupportedUrl, match=r"\.\[postgres\]"):
        open_engine("postgresql://nowhere/db")


def test_a_server_that_is_away_is_said_to_be_and_the_password_is_not() -> None:
    engine = open_engine("postgresql://me:secret@127.0.0.1:1/db")
    with pytest.raises(DatabaseUnavailable) as caught, engine.connection():
        pass
    assert "secret" not in str(caught.value)
    engine.close()
