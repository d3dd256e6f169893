"""What other clients do to a table behind Lapse's back, in the words of each engine.

A change is a list of statements that leaves a table `events`. `{number}` is new each time, and so is the time
`{moment}`. After a *blocking* change the table is not what the policy was declared on, and until a person has resumed
the policy all of its rows must stay, whatever times they hold. A *harmless* one must not even keep Lapse from its work.
Tables whose names begin with `away` belong to the other client alone: their rows stay for ever.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from contextlib import closing

import psycopg
import pymysql
from sqlalchemy import make_url

LONG_AGO = "{moment}"
"""A time that every policy would take for expired, and another one for each change: two columns with the same times in
all of their rows would be the same to everybody."""
RETYPED, RENAMED = "retyped", "renamed and back"
Statements = Sequence[str]


class Vocabulary(ABC):
    """Adding an engine is adding a subclass here and its backend's name to `VOCABULARIES`."""

    kinds: Sequence[str]
    """Kinds of tables: words for `create`."""
    stride, examples = 11, 20
    """Statements of a job between two places at which a change is tried, and how many histories are: less where making
    a database takes longer."""

    @abstractmethod
    def create(self, kind: str) -> Statements:
        """Declares the table `events (id, ts)` with a policy of one hour, by Lapse's front end."""

    @abstractmethod
    def blocking(self, kind: str) -> Mapping[str, Statements]: ...

    @abstractmethod
    def harmless(self, kind: str) -> Mapping[str, Statements]: ...

    def looks_replaced(self, changes: Set[str]) -> bool:
        """Are harmless changes together what a tool does that puts a copy in the place of the table?"""
        return False

    @abstractmethod
    def change(self, url: str, statements: Statements) -> set[int] | None:
        """Run the statements at once, without waiting for locks; the ids that `events` then has.

        None, with nothing changed, where somebody is in the way.
        """


class SqliteVocabulary(Vocabulary):
    kinds = ("rowid", "index", "key", "managed")

    def create(self, kind: str) -> Statements:
        if kind == "managed":
            return [f"CREATE TABLE events ({self._columns(kind)} WITH (ttl_expire_after = '1 hour')"]
        index = ["CREATE INDEX events_ts ON events (ts)"] if kind == "index" else []
        return [f"CREATE TABLE events ({self._columns(kind)} TTL = ts + INTERVAL 1 HOUR", *index]

    def blocking(self, kind: str) -> Mapping[str, Statements]:
        columns = self._columns(kind, whole=True)
        names = "id, ts, crdb_internal_expiration" if kind == "managed" else "id, ts"
        # The same keys as before, so that a job which goes on would find them.
        fill = f"INSERT INTO {{table}} (id, ts) SELECT id, '{LONG_AGO}' FROM {{source}} UNION SELECT {{number}}, NULL"
        changes = {
            "dropped and created again": [
                "CREATE TABLE kept AS SELECT id FROM events",
                "DROP TABLE events",
                f"CREATE TABLE events ({columns}",
                fill.replace("{table}", "events").replace("{source}", "kept"),
                "DROP TABLE kept",
            ],
            "swapped": [
                f"CREATE TABLE other ({columns}",
                fill.replace("{table}", "other").replace("{source}", "events"),
                "ALTER TABLE events RENAME TO away_{number}",
                "ALTER TABLE other RENAME TO events",
            ],
            "rebuilt": [
                f"CREATE TABLE rebuilt ({columns}",
                f"INSERT INTO rebuilt ({names}) SELECT {names} FROM events",
                "DROP TABLE events",
                "ALTER TABLE rebuilt RENAME TO events",
            ],
            "rebuilt from a copy": [
                "CREATE TABLE kept AS SELECT * FROM events",
                "DROP TABLE events",
                f"CREATE TABLE events ({columns}",
                f"INSERT INTO events ({names}) SELECT {names} FROM kept",
                "DROP TABLE kept",
            ],
        }
        if kind == "managed":
            return changes | {
                "insert trigger dropped": [
                    "DROP TRIGGER IF EXISTS lapse_events_insert",
                    "INSERT INTO events (id) VALUES ({number})",
                ],
                "update trigger dropped": ["DROP TRIGGER IF EXISTS lapse_events_update", "UPDATE events SET ts = ts"],
            }
        index = ["DROP INDEX IF EXISTS events_ts", "CREATE INDEX events_ts ON events (ts)"] if kind == "index" else []
        return changes | {
            "another column under the name": [
                "ALTER TABLE events RENAME COLUMN ts TO ts_{number}",
                f"ALTER TABLE events ADD COLUMN ts TIMESTAMP DEFAULT '{LONG_AGO}'",
                *index,
            ],
            "column swapped": [
                f"ALTER TABLE events ADD COLUMN born TIMESTAMP DEFAULT '{LONG_AGO}'",
                "ALTER TABLE events RENAME COLUMN ts TO ts_{number}",
                "ALTER TABLE events RENAME COLUMN born TO ts",
                *index,
            ],
        }

    def harmless(self, kind: str) -> Mapping[str, Statements]:
        return {
            "vacuum": ["VACUUM"],
            "analyze": ["ANALYZE"],
            "reindex": ["REINDEX"],
            "column added": ["ALTER TABLE events ADD COLUMN more_{number} TEXT DEFAULT 'x'"],
            "column dropped": [
                "ALTER TABLE events ADD COLUMN less TEXT",
                "ALTER TABLE events DROP COLUMN less",
            ],
            "renamed and back": ["ALTER TABLE events RENAME TO away", "ALTER TABLE away RENAME TO events"],
            "another table": ["CREATE TABLE another_{number} (id INTEGER PRIMARY KEY)"],
        }

    def change(self, url: str, statements: Statements) -> set[int] | None:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)) as client:
            alone = statements == ["VACUUM"]
            try:
                client.execute("SELECT 1" if alone else "BEGIN IMMEDIATE")
                for statement in statements:
                    client.execute(statement)
                found = {row[0] for row in client.execute("SELECT id FROM events")}
                client.execute("SELECT 1" if alone else "COMMIT")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                return None
            return found

    def _columns(self, kind: str, *, whole: bool = False) -> str:
        managed = ", crdb_internal_expiration TEXT DEFAULT '2001-02-03 04:05:06.789012345Z'"
        more = managed if kind == "managed" and whole else ""
        return f"id INTEGER PRIMARY KEY, ts TIMESTAMP{more}){' WITHOUT ROWID' if kind == 'key' else ''}"


class ServerVocabulary(Vocabulary):
    """What the servers have in common: types, and a table that is cut into two partitions by `id`."""

    kinds = ("plain", "index", "managed", "parts")
    stride, examples = 37, 8
    instant: str
    other_instant: str
    managed: str | None = None
    """The type that the managed column needs, where that is not `instant`."""
    """Another type for the same moment, which means another thing."""
    partitioned: str
    """The end of a CREATE TABLE."""
    long_ago = f"'{LONG_AGO}'"

    def create(self, kind: str) -> Statements:
        if kind == "managed":
            return [f"CREATE TABLE events ({self._columns(kind)}) WITH (ttl_expire_after = '1 hour')"]
        ttl = "TTL = ts + INTERVAL 1 HOUR"
        if kind == "parts":
            return [f"CREATE TABLE events ({self._columns(kind)}) {self.partitioned}", *self._leaves("events", ttl)]
        index = ["CREATE INDEX events_ts ON events (ts)"] if kind == "index" else []
        return [f"CREATE TABLE events ({self._columns(kind)}) {ttl}", *index]

    @abstractmethod
    def _leaves(self, table: str, ttl: str | None = None) -> Statements:
        """What makes the partitions of a partitioned table, and its policy where it is to have one."""

    def _made(self, table: str, kind: str) -> Statements:
        """Another table just like it, whose rows are all from long ago, with the same keys."""
        end = f" {self.partitioned}" if kind == "parts" else ""
        leaves = self._leaves(table) if kind == "parts" else []
        fill = f"INSERT INTO {table} (id, ts) SELECT id, {self.long_ago} FROM kept UNION SELECT {{number}}, NULL"
        return [f"CREATE TABLE {table} ({self._columns(kind, whole=True)}){end}", *leaves, fill]

    def _columns(self, kind: str, *, whole: bool = False) -> str:
        managed = f", crdb_internal_expiration {self.managed or self.instant} DEFAULT '{LONG_AGO}'"
        return f"id BIGINT NOT NULL PRIMARY KEY, ts {self.instant}{managed if kind == 'managed' and whole else ''}"

    def blocking(self, kind: str) -> Mapping[str, Statements]:
        keep, forget = "CREATE TABLE kept AS SELECT id FROM events", "DROP TABLE kept"
        changes: dict[str, Statements] = {
            "dropped and created again": [keep, "DROP TABLE events", *self._made("events", kind), forget],
            "swapped": [
                keep,
                *self._made("other", kind),
                "ALTER TABLE events RENAME TO away_{number}",
                "ALTER TABLE other RENAME TO events",
                forget,
            ],
        }
        if kind == "managed":
            return {**changes, **self._managed_changes()}
        index = ["DROP INDEX IF EXISTS events_ts{on}", "CREATE INDEX events_ts ON events (ts)"]
        after = [each.replace("{on}", self._of_table) for each in index] if kind == "index" else []
        return changes | {
            "another column under the name": [
                "ALTER TABLE events RENAME COLUMN ts TO ts_{number}",
                f"ALTER TABLE events ADD COLUMN ts {self.instant} DEFAULT '{LONG_AGO}'",
                *after,
            ],
            "column swapped": [
                f"ALTER TABLE events ADD COLUMN born {self.instant} DEFAULT '{LONG_AGO}'",
                "ALTER TABLE events RENAME COLUMN ts TO ts_{number}",
                "ALTER TABLE events RENAME COLUMN born TO ts",
                *after,
            ],
            RETYPED: [self._retype(), f"UPDATE events SET ts = '{LONG_AGO}'"],
        }

    _of_table = ""

    @abstractmethod
    def _managed_changes(self) -> Mapping[str, Statements]: ...

    @abstractmethod
    def _retype(self) -> str: ...


class PostgresVocabulary(ServerVocabulary):
    instant = "TIMESTAMPTZ"
    other_instant = "TIMESTAMP"
    long_ago = f"TIMESTAMPTZ '{LONG_AGO}'"
    partitioned = "PARTITION BY RANGE (id)"

    def _leaves(self, table: str, ttl: str | None = None) -> Statements:
        made = [
            f"CREATE TABLE {table}_low{{number}} PARTITION OF {table} FOR VALUES FROM (MINVALUE) TO (6)",
            f"CREATE TABLE {table}_high{{number}} PARTITION OF {table} FOR VALUES FROM (6) TO (MAXVALUE)",
        ]
        return [*made, *([f"ALTER TABLE {table} {ttl}"] if ttl else [])]

    def _retype(self) -> str:
        return f"ALTER TABLE events ALTER COLUMN ts TYPE {self.other_instant}"

    def _managed_changes(self) -> Mapping[str, Statements]:
        renew, insert = "UPDATE events SET ts = ts", "INSERT INTO events (id) VALUES ({number})"
        return {
            "trigger dropped": ["DROP TRIGGER IF EXISTS lapse_ttl_update ON events", renew],
            # A table that has taken the name since has none.
            "trigger disabled": [
                "DO $$ BEGIN ALTER TABLE events DISABLE TRIGGER lapse_ttl_update;"
                " EXCEPTION WHEN undefined_object THEN NULL; END $$",
                renew,
            ],
            "all triggers disabled": ["ALTER TABLE events DISABLE TRIGGER ALL", renew],
            "default dropped": [
                "ALTER TABLE events ALTER COLUMN crdb_internal_expiration DROP DEFAULT",
                f"INSERT INTO events (id, crdb_internal_expiration) VALUES ({{number}}, '{LONG_AGO}')",
            ],
            "default changed": [
                f"ALTER TABLE events ALTER COLUMN crdb_internal_expiration SET DEFAULT '{LONG_AGO}'",
                insert,
            ],
            "managed column made again": [
                "ALTER TABLE events DROP COLUMN crdb_internal_expiration CASCADE",
                f"ALTER TABLE events ADD COLUMN crdb_internal_expiration TIMESTAMPTZ DEFAULT '{LONG_AGO}'",
            ],
        }

    def harmless(self, kind: str) -> Mapping[str, Statements]:
        changes: dict[str, Statements] = {
            "analyze": ["ANALYZE events"],
            "column added": ["ALTER TABLE events ADD COLUMN more_{number} TEXT DEFAULT 'x'"],
            "column dropped": ["ALTER TABLE events ADD COLUMN less TEXT", "ALTER TABLE events DROP COLUMN less"],
            "renamed and back": ["ALTER TABLE events RENAME TO elsewhere", "ALTER TABLE elsewhere RENAME TO events"],
            "reindexed": ["REINDEX TABLE events"],
            "a zone for new sessions": ["SET LOCAL timezone = 'Asia/Tokyo'"],
            "emptied and loaded again": [
                "CREATE TEMP TABLE rows_of AS SELECT * FROM events",
                "TRUNCATE events",
                "INSERT INTO events SELECT * FROM rows_of",
                "DROP TABLE rows_of",
            ],
        }
        if kind == "parts":
            # Whose partitions have other names once it was swapped.
            return {name: changes[name] for name in ("analyze", "column added", "column dropped", "renamed and back")}
        return changes | {
            "rewritten": [f"ALTER TABLE events ALTER COLUMN id TYPE {kind}" for kind in ("INTEGER", "BIGINT")]
        }

    def change(self, url: str, statements: Statements) -> set[int] | None:
        with psycopg.connect(url) as client:
            try:
                client.execute("SET LOCAL lock_timeout = '20ms'")
                client.execute("SET LOCAL timezone = 'UTC'")
                for statement in statements:
                    client.execute(statement.encode())
                return {row[0] for row in client.execute("SELECT id FROM events")}
            except psycopg.errors.LockNotAvailable:
                client.rollback()
                return None


class MariadbVocabulary(ServerVocabulary):
    instant = "TIMESTAMP(3) NULL"
    other_instant = "DATETIME(3)"
    partitioned = (
        "PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (6), PARTITION high VALUES LESS THAN MAXVALUE)"
    )
    _of_table = " ON events"

    def _leaves(self, table: str, ttl: str | None = None) -> Statements:
        return [f"ALTER TABLE {table} {ttl}"] if ttl else []

    def _retype(self) -> str:
        return f"ALTER TABLE events MODIFY ts {self.other_instant}"

    def looks_replaced(self, changes: Set[str]) -> bool:
        """A new number of the table and a RENAME: OPTIMIZE alone tells that it was rebuilt."""
        return RENAMED in changes and not changes <= {RENAMED, *self.keep_the_number}

    keep_the_number = ("analyze", "optimize", "another zone", "another SQL mode")

    def blocking(self, kind: str) -> Mapping[str, Statements]:
        keep, forget = "CREATE TABLE kept AS SELECT id FROM events", "DROP TABLE kept"
        made = self._made("other", kind)
        return {
            **super().blocking(kind),
            "swapped in one statement": [
                keep,
                *made,
                "RENAME TABLE events TO away_{number}, other TO events",
                forget,
            ],
            "replaced": [
                keep,
                self._made("events", kind)[0].replace("CREATE", "CREATE OR REPLACE", 1),
                *self._made("events", kind)[1:],
                forget,
            ],
            "changed online, by a copy": [
                "CREATE TABLE copy LIKE events",
                f"INSERT INTO copy ({self._names(kind)}) SELECT {self._names(kind)} FROM events",
                "RENAME TABLE events TO away_{number}, copy TO events",
            ],
        }

    def _names(self, kind: str) -> str:
        return "id, ts, crdb_internal_expiration" if kind == "managed" else "id, ts"

    def _managed_changes(self) -> Mapping[str, Statements]:
        renew, insert = "UPDATE events SET ts = ts", "INSERT INTO events (id) VALUES ({number})"
        head = "CREATE OR REPLACE TRIGGER lapse_events_update BEFORE UPDATE ON events FOR EACH ROW"
        return {
            "trigger dropped": ["DROP TRIGGER IF EXISTS lapse_events_update", renew],
            "trigger replaced": [f"{head} SET NEW.id = NEW.id", renew],
            "default dropped": [
                "ALTER TABLE events ALTER COLUMN crdb_internal_expiration DROP DEFAULT",
                f"INSERT INTO events (id, crdb_internal_expiration) VALUES ({{number}}, '{LONG_AGO}')",
            ],
            "default changed": [
                f"ALTER TABLE events ALTER COLUMN crdb_internal_expiration SET DEFAULT '{LONG_AGO}'",
                insert,
            ],
            "default computed otherwise": [
                "ALTER TABLE events ALTER COLUMN crdb_internal_expiration"
                " SET DEFAULT (utc_timestamp(6) - INTERVAL 1 YEAR)",
                insert,
            ],
            "managed column made again": [
                "ALTER TABLE events DROP COLUMN crdb_internal_expiration",
                f"ALTER TABLE events ADD COLUMN crdb_internal_expiration DATETIME(6) DEFAULT '{LONG_AGO}' INVISIBLE",
            ],
        }

    def harmless(self, kind: str) -> Mapping[str, Statements]:
        names = self._names(kind)
        changes: dict[str, Statements] = {
            "analyze": ["ANALYZE TABLE events"],
            "optimize": ["OPTIMIZE TABLE events"],
            "rebuilt": ["ALTER TABLE events FORCE"],
            "column added": ["ALTER TABLE events ADD COLUMN more_{number} INT DEFAULT 3"],
            "column dropped": ["ALTER TABLE events ADD COLUMN less INT", "ALTER TABLE events DROP COLUMN less"],
            # In one statement: between two a job would rightly say that the table is gone.
            RENAMED: ["RENAME TABLE events TO elsewhere, elsewhere TO events"],
            "another zone": ["SET GLOBAL time_zone = '-08:00'", "SET GLOBAL time_zone = 'SYSTEM'"],
            "another SQL mode": ["SET GLOBAL sql_mode = 'ANSI_QUOTES'", "SET GLOBAL sql_mode = DEFAULT"],
            "emptied and loaded again": [
                f"CREATE TEMPORARY TABLE rows_of AS SELECT {names} FROM events",
                "TRUNCATE TABLE events",
                f"INSERT INTO events ({names}) SELECT {names} FROM rows_of",
            ],
        }
        if kind == "parts":
            copy = [
                "CREATE TABLE part LIKE events",
                "ALTER TABLE part REMOVE PARTITIONING",
                f"INSERT INTO part ({names}) SELECT {names} FROM events PARTITION (low)",
            ]
            return changes | {
                "partition exchanged": [
                    *copy,
                    "ALTER TABLE events EXCHANGE PARTITION low WITH TABLE part",
                    "RENAME TABLE part TO away_{number}",
                ],
                "reorganized": [
                    "ALTER TABLE events REORGANIZE PARTITION low, high INTO"
                    " (PARTITION low VALUES LESS THAN (6), PARTITION high VALUES LESS THAN MAXVALUE)"
                ],
            }
        return changes

    def change(self, url: str, statements: Statements) -> set[int] | None:
        """Statements that change a schema cannot be undone: whether anybody is in the way is asked first."""
        where = make_url(url)
        with closing(
            pymysql.connect(
                host=where.host,
                port=where.port or 0,
                user=where.username,
                database=where.database,
                autocommit=True,
                ssl_disabled=True,
            )
        ) as client:
            cursor = client.cursor()
            if self._is_in_use(cursor):
                return None
            cursor.execute("SET lock_wait_timeout = 0, innodb_lock_wait_timeout = 0, time_zone = '+00:00'")
            try:
                cursor.execute("LOCK TABLES events WRITE")
            except pymysql.err.OperationalError as error:
                if error.args[0] != LOCK_WAIT_TIMEOUT:
                    raise
                return None
            cursor.execute("UNLOCK TABLES")
            cursor.execute("SET lock_wait_timeout = 5, innodb_lock_wait_timeout = 5")
            for statement in statements:
                self._execute(cursor, statement)
            cursor.execute("SELECT id FROM events")
            return {row[0] for row in cursor.fetchall()}

    def _execute(self, cursor: pymysql.cursors.Cursor, statement: str) -> None:
        cursor.execute(statement)

    def _is_in_use(self, cursor: pymysql.cursors.Cursor) -> bool:
        """Known without waiting; `LOCK TABLES` then asks again."""
        return False


class MysqlVocabulary(MariadbVocabulary):
    """Less of it: nothing is replaced in one statement. What differs from MariaDB is the schema, not the engine's way
    through a job, so fewer places are tried in one."""

    stride, examples = 61, 4
    managed = "DATETIME(6)"

    def blocking(self, kind: str) -> Mapping[str, Statements]:
        return {name: done for name, done in super().blocking(kind).items() if name != "replaced"}

    def _execute(self, cursor: pymysql.cursors.Cursor, statement: str) -> None:
        """MySQL knows IF EXISTS for no index."""
        try:
            cursor.execute(statement.replace("DROP INDEX IF EXISTS", "DROP INDEX"))
        except pymysql.err.OperationalError as error:
            if error.args[0] != NO_SUCH_INDEX:
                raise

    def _is_in_use(self, cursor: pymysql.cursors.Cursor) -> bool:
        """MySQL waits for a second at least where MariaDB does not wait at all."""
        cursor.execute(
            "SELECT count(*) FROM performance_schema.metadata_locks WHERE OBJECT_SCHEMA = DATABASE()"
            " AND OBJECT_NAME = 'events' AND OWNER_THREAD_ID <> PS_CURRENT_THREAD_ID()"
        )
        return bool(cursor.fetchall()[0][0])

    def harmless(self, kind: str) -> Mapping[str, Statements]:
        """MySQL counts temporary tables among those that were made, and a table which was empty when Lapse last looked
        has no row to be told by: one that is truncated after that may be another one."""
        names = self._names(kind)
        columns = ", ".join(f"{name} VARCHAR(40) PATH '$[{at}]'" for at, name in enumerate(names.split(", ")))
        loaded = [
            f"SET @rows_of = (SELECT json_arrayagg(json_array({names})) FROM events)",
            "TRUNCATE TABLE events",
            f"INSERT INTO events ({names}) SELECT {names} FROM json_table(@rows_of, '$[*]' COLUMNS ({columns})) AS r",
        ]
        return {**super().harmless(kind), "emptied and loaded again": loaded}

    def _managed_changes(self) -> Mapping[str, Statements]:
        body = "BEFORE UPDATE ON events FOR EACH ROW SET NEW.id = NEW.id"
        stamp = "BEFORE INSERT ON events FOR EACH ROW SET NEW.id = NEW.id"
        return {
            **super()._managed_changes(),
            "trigger replaced": [
                "DROP TRIGGER IF EXISTS lapse_events_update",
                f"CREATE TRIGGER lapse_events_update {body}",
                "UPDATE events SET ts = ts",
            ],
            "stamping trigger dropped": ["DROP TRIGGER IF EXISTS lapse_events_insert"],
            "stamping trigger replaced": [
                "DROP TRIGGER IF EXISTS lapse_events_insert",
                f"CREATE TRIGGER lapse_events_insert {stamp}",
            ],
        }


LOCK_WAIT_TIMEOUT, NO_SUCH_INDEX = 1205, 1091

VOCABULARIES: dict[str, type[Vocabulary]] = {
    "sqlite": SqliteVocabulary,
    "postgres15": PostgresVocabulary,
    "mariadb": MariadbVocabulary,
    "mysql": MysqlVocabulary,
}
"""By the names of `tests.backends`."""
