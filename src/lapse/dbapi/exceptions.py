"""The exceptions of PEP 249, and where Lapse's and the driver's errors become them.

Exception
├── Warning
└── Error
    ├── InterfaceError
    └── DatabaseError
        ├── DataError
        ├── OperationalError
        ├── IntegrityError
        ├── InternalError
        ├── ProgrammingError
        └── NotSupportedError
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from lapse import errors


class Warning(Exception):
    """Never raised; PEP 249 wants it."""


class Error(Exception):
    """Root of the rest; `hint` says what to do next, the error it came from is its `__cause__`."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class InterfaceError(Error):
    """The connection or cursor was not used as it can be."""


class DatabaseError(Error):
    pass


class DataError(DatabaseError):
    pass


class OperationalError(DatabaseError):
    """Busy, away, read-only, out of space: not the program's fault."""


class IntegrityError(DatabaseError):
    """A constraint did not hold."""


class InternalError(DatabaseError):
    pass


class ProgrammingError(DatabaseError):
    """The statement is wrong, or not allowed here."""


class NotSupportedError(DatabaseError):
    """This engine cannot do it."""


_OF_DRIVER = {
    kind.__name__: kind
    for kind in (
        InterfaceError,
        DataError,
        OperationalError,
        IntegrityError,
        InternalError,
        ProgrammingError,
        NotSupportedError,
        DatabaseError,
        Error,
    )
}

_OF_LAPSE: tuple[tuple[type[errors.LapseError], type[Error]], ...] = (
    (errors.Unsupported, NotSupportedError),
    (errors.RowUndeletable, IntegrityError),
    (errors.DatabaseUnavailable, OperationalError),
    (errors.Retryable, OperationalError),
    (errors.Interrupted, OperationalError),
    (errors.CatalogError, OperationalError),
    (errors.DatabaseError, DatabaseError),
    (errors.LapseError, ProgrammingError),
)


@contextmanager
def translated() -> Iterator[None]:
    """Inside it, every error of Lapse or of a driver is raised as one of PEP 249's."""
    try:
        yield
    except Exception as error:
        raise_translated(error)


def raise_translated(error: Exception) -> NoReturn:
    """The same for statements so frequent that a context manager would cost too much; call it in `except`."""
    if isinstance(error, errors.LapseError):
        kind = _of_cause(error) or next(ours for theirs, ours in _OF_LAPSE if isinstance(error, theirs))
        raise kind(error.message, hint=error.hint) from error
    if isinstance(error, SQLAlchemyError):
        raise (_of_cause(error) or DatabaseError)(str(error)) from error
    driver_kind = None if isinstance(error, Error | Warning) else _of_driver(error)
    if driver_kind is None:
        raise error
    raise driver_kind(str(error)) from error


def _of_cause(error: BaseException) -> type[Error] | None:
    cause = error if isinstance(error, DBAPIError) else error.__cause__
    return _of_driver(cause.orig) if isinstance(cause, DBAPIError) and cause.orig is not None else None


def _of_driver(error: BaseException) -> type[Error] | None:
    """Every driver's exceptions have PEP 249's names; the most special of them decides."""
    return next((_OF_DRIVER[base.__name__] for base in type(error).__mro__ if base.__name__ in _OF_DRIVER), None)
