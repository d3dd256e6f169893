"""The public compliance test of PEP 249, by Stuart Bishop, on every engine.

It leaves three tests to the driver: `nextset`, `setoutputsize`, and what closing twice does. It needs a table's columns
to have types, which SQLite's have not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import dbapi20
import pytest

import lapse
from tests.conftest import Servers


class _Compliance(dbapi20.DatabaseAPI20Test):  # type: ignore[misc]
    __test__ = False
    driver = lapse
    backend: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _database(self, servers: Servers) -> Iterator[None]:
        backend = servers.get(self.backend)
        self._opened: list[lapse.Connection] = []
        self.connect_args = (backend.create(),)
        yield
        for connection in self._opened:
            connection.close()
        backend.drop(*self.connect_args)

    def _connect(self) -> lapse.Connection:
        self._opened.append(super()._connect())
        return self._opened[-1]

    def test_non_idempotent_close(self) -> None:
        connection = self._connect()
        connection.close()
        connection.close()

    def test_setoutputsize(self) -> None:
        """Drivers find the sizes themselves."""
        cursor = self._connect().cursor()
        cursor.setoutputsize(1)
        assert cursor.execute("SELECT 'longer than that'").fetchall() == [("longer than that",)]

    def test_nextset(self) -> None:
        cursor = self._connect().execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]
        assert cursor.nextset() is None

    def test_type_objects(self) -> None:
        cursor = self._connect().cursor()
        cursor.execute(f"CREATE TABLE kinds (s VARCHAR(3), n INT, d DECIMAL(3, 1), at TIMESTAMP, b {self.binary})")
        cursor.execute("SELECT * FROM kinds")
        assert cursor.description is not None
        found = [column[1] for column in cursor.description]
        assert found == [lapse.STRING, lapse.NUMBER, lapse.NUMBER, lapse.DATETIME, lapse.BINARY]
        assert [code == lapse.STRING for code in found] == [True, False, False, False, False]

    binary = "BLOB"


class TestSqlite(_Compliance):
    __test__ = True
    backend = "sqlite"
    lower_func = None

    def test_description(self) -> None:
        """The type code is None: any column of SQLite's can hold any value."""
        cursor = self._connect().cursor()
        self.executeDDL1(cursor)
        assert cursor.description is None
        cursor.execute(f"select name from {self.table_prefix}booze")
        assert cursor.description == (("name", None, None, None, None, None, None),)
        self.executeDDL2(cursor)
        assert cursor.description is None

    def test_type_objects(self) -> None:
        assert lapse.STRING not in (lapse.NUMBER, None)

    def test_callproc(self) -> None:
        with pytest.raises(lapse.NotSupportedError):
            self._connect().cursor().callproc("lower", ("FOO",))


class TestPostgres(_Compliance):
    __test__ = True
    backend = "postgres15"
    binary = "BYTEA"

    def test_nextset(self) -> None:
        cursor = self._connect().execute("SELECT 1; SELECT 2")
        assert cursor.fetchall() == [(1,)]
        assert cursor.nextset()
        assert cursor.fetchall() == [(2,)]
        assert cursor.nextset() is None


class TestPostgres18(TestPostgres):
    backend = "postgres18"


class TestMariadb(_Compliance):
    __test__ = True
    backend = "mariadb"
    lower_func = "lowered"

    def test_callproc(self) -> None:
        self._connect().execute("CREATE PROCEDURE lowered(given TEXT) SELECT lower(given)")
        super().test_callproc()

    def test_nextset(self) -> None:
        connection = self._connect()
        connection.execute("CREATE PROCEDURE deleteme() BEGIN SELECT 1; SELECT 2; END")
        cursor: Any = connection.cursor()
        cursor.callproc("deleteme")
        assert cursor.fetchone() == (1,)
        assert cursor.nextset()
        assert cursor.fetchall() == [(2,)]
        # The procedure's own end is a result without rows.
        while cursor.nextset():
            assert cursor.description is None
