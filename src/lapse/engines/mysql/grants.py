"""What accounts may do to the tables of one database, by the server's own grant tables.

Rights count that were given to the account itself. What it has by a role, which a session may or may not have set, and
what PUBLIC has, does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.mysql.names import quote
from lapse.errors import NotPermitted, Unsupported
from lapse.model.table import REQUEST_TABLE

_FLAGS = {
    "SELECT": "Select_priv",
    "INSERT": "Insert_priv",
    "UPDATE": "Update_priv",
    "DELETE": "Delete_priv",
    "CREATE": "Create_priv",
    "DROP": "Drop_priv",
    "ALTER": "Alter_priv",
    "CREATE VIEW": "Create_view_priv",
    "TRIGGER": "Trigger_priv",
}
OWNER = tuple(_FLAGS)
"""What stands in for ownership, which tables do not have there: GRANT ALL on the table gives them."""
_REWRITES = frozenset({"INSERT", "UPDATE", "DROP", "ALTER", "TRIGGER"})
"""With one of these on a whole table an account can make its rows say anything."""
WRITTEN_BY_CALLERS = frozenset({"command", "table_name", "arguments"})
_COLUMNS = ", ".join(_FLAGS.values())
READS = (
    f"SELECT (User, Host, {_COLUMNS}) ON mysql.user",
    f"SELECT (User, Host, Db, {_COLUMNS}) ON mysql.db",
    "SELECT (User, Host, Db, Table_name, Table_priv) ON mysql.tables_priv",
    "SELECT (User, Host, Db, Table_name, Column_name, Column_priv) ON mysql.columns_priv",
)
"""What a worker needs for telling what other accounts may do: the four places where the server keeps that, and of each
no column more. None of it is a password. The server tells an account its own rights only, in every other way."""


@dataclass(frozen=True, slots=True)
class Account:
    user: str
    host: str

    @classmethod
    def read(cls, text: str) -> Account:
        """As CURRENT_USER() writes it; a host has no @."""
        user, _, host = text.rpartition("@")
        return cls(user, host)

    def __str__(self) -> str:
        return f"{quote(self.user)}@{quote(self.host)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grant:
    """On everything where `database` is None, on a database where `table` is."""

    account: Account
    privileges: frozenset[str]
    database: str | None = None
    table: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Grants:
    database: str
    given: tuple[_Grant, ...]
    rewriting_columns: frozenset[Account]
    """Those that may write columns of the request table that are the server's to fill."""

    def lacking(self, account: Account, table: str, wanted: tuple[str, ...] = OWNER) -> list[str]:
        """What the account does not surely have."""
        have = self._surely(account, table)
        return [privilege for privilege in wanted if privilege not in have]

    def writers(self) -> Iterator[Account]:
        """Accounts and roles that could have written a request in another account's name."""
        able = {
            grant.account
            for grant in self.given
            if grant.privileges & _REWRITES and (grant.table is None or _same(grant.table, REQUEST_TABLE))
        }
        yield from sorted(able | self.rewriting_columns, key=str)

    def _surely(self, account: Account, table: str) -> frozenset[str]:
        own = [grant for grant in self.given if grant.account == account]
        everywhere = [grant.privileges for grant in own if grant.database is None]
        exactly = [grant for grant in own if grant.table is None and grant.database is not None]
        named = [grant.privileges for grant in exactly if _literal(grant.database or "") == self.database]
        # The server goes by one of several patterns that match. Whichever it is, it has what they have in common.
        like = [frozenset.intersection(*(grant.privileges for grant in exactly))] if exactly and not named else []
        tables = [grant.privileges for grant in own if grant.table == table]
        return frozenset().union(*everywhere, *(named or like), *tables)


def load(connection: Connection, database: str, worker: str) -> Grants:
    """Raises NotPermitted, with what `worker` has to be given, where this session may not read them."""
    if _is_on(connection, "partial_revokes"):
        raise Unsupported(
            "the server has partial_revokes switched on, so what an account may do cannot be told",
            hint="declare it with `lapse sql`",
        )
    try:
        return Grants(
            database=database,
            given=(*_global(connection), *_of_database(connection, database), *_of_tables(connection, database)),
            rewriting_columns=_of_columns(connection, database),
        )
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        account = Account.read(worker)
        raise NotPermitted(
            f"the worker's account {account} may not read what accounts may do, so it cannot tell who may ask",
            hint=" ".join(f"GRANT {each} TO {account};" for each in READS),
        ) from error


def _is_on(connection: Connection, variable: str) -> bool:
    row = connection.exec_driver_sql(f"SHOW GLOBAL VARIABLES LIKE '{variable}'").first()
    return row is not None and str(row[1]).upper() in ("ON", "1")


def _global(connection: Connection) -> Iterator[_Grant]:
    for user, host, *flags in connection.exec_driver_sql(f"SELECT User, Host, {_COLUMNS} FROM mysql.user"):
        yield _Grant(account=Account(str(user), str(host)), privileges=_flagged(flags))


def _of_database(connection: Connection, database: str) -> Iterator[_Grant]:
    for user, host, pattern, *flags in connection.exec_driver_sql(f"SELECT User, Host, Db, {_COLUMNS} FROM mysql.db"):
        if _matches(str(pattern), database):
            yield _Grant(account=Account(str(user), str(host)), privileges=_flagged(flags), database=str(pattern))


def _of_tables(connection: Connection, database: str) -> Iterator[_Grant]:
    found = connection.exec_driver_sql(
        "SELECT User, Host, Db, Table_name, Table_priv FROM mysql.tables_priv WHERE Db = %s", (database,)
    )
    for user, host, name, table, words in found:
        if name == database:
            account = Account(str(user), str(host))
            yield _Grant(account=account, privileges=_words(words), database=str(name), table=str(table))


def _of_columns(connection: Connection, database: str) -> frozenset[Account]:
    found = connection.exec_driver_sql(
        "SELECT User, Host, Table_name, Column_name, Column_priv FROM mysql.columns_priv WHERE Db = %s", (database,)
    )
    return frozenset(
        Account(str(user), str(host))
        for user, host, table, column, words in found
        if _same(str(table), REQUEST_TABLE)
        and (_words(words) & {"UPDATE"} or ("INSERT" in _words(words) and column not in WRITTEN_BY_CALLERS))
    )


def _flagged(flags: list[object]) -> frozenset[str]:
    return frozenset(name for name, flag in zip(_FLAGS, flags, strict=True) if str(flag) == "Y")


def _words(text: object) -> frozenset[str]:
    return frozenset(word.upper() for word in str(text).split(","))


def _same(name: str, other: str) -> bool:
    return name.lower() == other.lower()


def _matches(pattern: str, database: str) -> bool:
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    written = "".join(wild.get(part, re.escape(part[-1])) for part in parts)
    return re.fullmatch(written, database, re.DOTALL | re.IGNORECASE) is not None


def _literal(pattern: str) -> str | None:
    """None where it is a pattern for more than one name."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    return None if {"%", "_"} & set(parts) else "".join(part[-1] for part in parts)
