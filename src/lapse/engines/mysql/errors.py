"""The servers' error numbers, as Lapse's errors."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy.exc import DBAPIError

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

_AWAY = frozenset(
    {1040, 1047, 1053, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1203, 1927, 2002, 2003, 2006, 2013, 2055}
)
"""No connection, or none any more; 1047 is a Galera node that has lost its cluster."""
_LOGIN = frozenset({1044, 1045, 1049, 1130, 1251, 1698, 3118, 3159, 2026, 2059, 2061})
_LOCK_WAIT = 1205
_LOCKED = frozenset({_LOCK_WAIT, 3572})
_RETRYABLE = frozenset({1020, 1197, 1206, 1213, 1412, 1467, 1613, 1614, 1637, 1684, 3058, 3101})
"""Deadlocks, a full binlog cache, AUTO_INCREMENT numbers that a statement of another session takes, a table that is
being altered, a conflict with another Galera node."""
_RETRYABLE_ON_TIDB = frozenset({8002, 8005, 8022, 8028, 9001, 9002, 9003, 9004, 9005, 9007})
"""Conflicts between transactions, a schema that has changed, and servers of the cluster that are busy."""
_TRIED_ENOUGH = "pessimistic lock retry limit reached"
"""TiDB's own, without a number of its own: other transactions have changed the row again and again."""
_TOO_SLOW = frozenset({1969, 3024})
_INTERRUPTED = frozenset({1317, 1028})
_UNDELETABLE = frozenset({1216, 1217, 1451, 1452, 1644, 1442, 3008})
"""Foreign keys, a chain of them that is too long for MySQL, and triggers that object."""
_DRIFT = frozenset({1054, 1109, 1146, 1176, 1735, 1091})
_READ_ONLY = frozenset({1290, 1792, 1836})
_ALREADY_THERE = frozenset({1050, 1060, 1061, 1062})
_NO_SAVEPOINT = 1305
_BEING_ALTERED = 1684
_NO_TABLE = 1146
_NOT_THIS_DATABASE = 1044
_NOT_LOCKED = 1100
_DENIED = frozenset({1142, 1143, 1227, 1370, 1419, 8121})
"""The last is TiDB's."""
_BINLOG_FORMAT = 1665
_STORAGE_ENGINE = 1296
_CASCADE_TOO_DEEP = re.compile(r"error 193\b")
"""InnoDB follows a chain of cascades for 15 steps, and MariaDB passes its error on without a number of its own."""


def translate(error: DBAPIError) -> LapseError:
    number, text = _number_and_text(error.orig)
    if error.connection_invalidated or number in _AWAY:
        return DatabaseUnavailable(f"the database is unreachable: {text}")
    if number in _LOGIN:
        return DatabaseUnavailable(
            f"cannot log in: {text}", hint="check user, password, database and ssl_mode in the URL"
        )
    if number in _TOO_SLOW:
        return TooSlow(text)
    if number in _LOCKED:
        return Locked(f"the database is busy: {text}")
    if number in _RETRYABLE or number in _RETRYABLE_ON_TIDB or text == _TRIED_ENOUGH:
        return Retryable(f"the database is busy: {text}")
    if number in _INTERRUPTED:
        return Interrupted("the statement was interrupted")
    if number == _STORAGE_ENGINE and _CASCADE_TOO_DEEP.search(text):
        return RowUndeletable(f"more rows would go along by foreign keys than the server allows: {text}")
    if number in _UNDELETABLE or type(error.orig).__name__ == "IntegrityError":
        return RowUndeletable(text)
    if number in _DRIFT:
        return Drift(text)
    if number in _READ_ONLY:
        return DatabaseUnavailable(f"the server takes no writes: {text}", hint="point the URL at the primary")
    if number == _BINLOG_FORMAT:
        return DatabaseError(
            "the server writes its binary log in the format STATEMENT, in which it cannot log what Lapse does",
            hint="SET GLOBAL binlog_format = 'ROW' (or 'MIXED'), in the server's configuration as well",
        )
    if number == _NOT_LOCKED:
        return DatabaseError(text, hint="UNLOCK TABLES first: this statement needs Lapse's catalog")
    if number in _DENIED:
        return NotPermitted(text, hint="`lapse doctor` prints the GRANT statements Lapse needs")
    return DatabaseError(text)


def is_already_there(error: DBAPIError) -> bool:
    """Did another session create the table, the index or the row first?"""
    return _number_and_text(error.orig)[0] in _ALREADY_THERE


def is_lock_wait(error: BaseException | None) -> bool:
    """Did another session hold a lock for too long?"""
    return isinstance(error, DBAPIError) and _number_and_text(error.orig)[0] == _LOCK_WAIT


def is_being_altered(error: DBAPIError) -> bool:
    return _number_and_text(error.orig)[0] == _BEING_ALTERED


def is_denied(error: DBAPIError) -> bool:
    """Does the account lack a right? On a whole database that is the number of a login that failed, too."""
    return _number_and_text(error.orig)[0] in _DENIED | {_NOT_THIS_DATABASE}


def is_missing(error: DBAPIError) -> bool:
    """Is there no such table?"""
    return _number_and_text(error.orig)[0] == _NO_TABLE


def is_no_savepoint(error: DBAPIError) -> bool:
    return _number_and_text(error.orig)[0] == _NO_SAVEPOINT


def _number_and_text(error: Any) -> tuple[int, str]:
    arguments: tuple[Any, ...] = getattr(error, "args", ())
    if len(arguments) >= 2 and isinstance(arguments[0], int):
        return arguments[0], str(arguments[1])
    return 0, str(error)
