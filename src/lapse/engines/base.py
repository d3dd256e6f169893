"""The engine protocol: everything Lapse needs from a database, documented here once.

Above this layer there is no SQL dialect, no driver error and no `if engine ==`. An engine opens sessions, describes
tables, installs what a policy needs in the database, and deletes expired rows in bounded batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Connection
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from lapse.clock import Clock
from lapse.engines.features import Features
from lapse.engines.values import Advice, Batch, Declared, Expiring, Footprint, Gauge, Survey, Target
from lapse.errors import DatabaseError, LapseError
from lapse.model.job import KeyRange, Path
from lapse.model.policy import Policy
from lapse.model.table import Table, TableName

Checkpoint = Callable[[Connection, Batch], None]
"""Called inside the transaction that deletes, so that counts and cursor commit with the rows or not at all."""


class Deleter(ABC):
    """Works through one range of a target, batch by batch."""

    @abstractmethod
    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        """Delete at most `limit` expired rows after the cursor, in one transaction; returns what happened.

        The condition is checked again by the statement that deletes. Rows that others have locked are skipped.
        Raises Retryable, RowUndeletable (nothing was deleted), Drift, Fenced, Interrupted or DatabaseError.
        """

    @abstractmethod
    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        """Move past the next expired row without deleting it, counting it as held."""

    @abstractmethod
    def restart(self) -> None:
        """Go back to the start of the range, for rows that were skipped or held."""

    def interrupt(self) -> None:  # noqa: B027 - optional
        """Make a statement that is running now fail with Interrupted; called from another thread."""


class Engine(ABC):
    name: ClassVar[str]
    """As in `lapse.open(url).engine.name`: sqlite, postgres, mysql, mariadb."""
    dialect: ClassVar[str]
    """How the `ddl` layer reads this engine's SQL: sqlite, postgres, mysql."""
    catalog_schema: ClassVar[str | None] = None
    """Where Lapse's own tables live; None is the connection's own schema."""
    features: Features

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database = database
        self.clock = clock

    def exists(self) -> bool:
        """Is there a database behind the URL, or would connecting create one?"""
        return True

    # Sessions

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection on which every statement commits by itself."""
        with self.errors(), self.database.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[Connection]:
        """One write transaction on a connection of its own: commits at the end, rolls back on an error.

        One that need not be `durable` does not wait for the disk where the engine has the choice; a crash of the server
        may undo it, with everything that was committed after it.
        """
        with self.connection() as connection, self.atomic(connection):
            yield connection

    @abstractmethod
    def atomic(self, connection: Connection) -> AbstractContextManager[None]:
        """A context manager: all or nothing on this connection, nested in the transaction that is open, if one is."""

    @abstractmethod
    def in_transaction(self, connection: Connection) -> bool:
        """Is a transaction open on this connection that somebody else will end?"""

    def exclusively(self, connection: Connection) -> AbstractContextManager[None]:
        """Nobody else installs or upgrades the catalog meanwhile; a no-op where a transaction sees to that."""
        return nullcontext()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """The one boundary where a driver's errors become Lapse's."""
        try:
            yield
        except LapseError:
            raise
        except DBAPIError as error:
            raise self.translate(error) from error
        except SQLAlchemyError as error:
            raise DatabaseError(str(error)) from error

    @abstractmethod
    def translate(self, error: DBAPIError) -> LapseError: ...

    @abstractmethod
    def now(self, connection: Connection) -> datetime:
        """The database's clock, or the one that was injected; aware, UTC."""

    @abstractmethod
    def stopwatch(self, connection: Connection) -> datetime:
        """The server's real time, the same for the whole fleet and never injected: for measuring rates."""

    def close(self) -> None:
        self.database.dispose()

    def prepare_catalog(self, connection: Connection) -> None:  # noqa: B027 - only where there is something to do
        """Make room for the catalog, inside the transaction that installs it; one process at a time gets past here."""

    # Tables

    @abstractmethod
    def describe(self, connection: Connection, name: TableName) -> Table:
        """Raises TableNotFound. The name in the result is complete and spelled as the database spells it."""

    def full_name(self, connection: Connection, name: TableName) -> TableName:
        """As the database spells it, with its schema. Raises TableNotFound."""
        return self.describe(connection, name).name

    @abstractmethod
    def tables(self, connection: Connection) -> list[TableName]:
        """Tables a policy could be declared on, Lapse's own left out."""

    def leaves(self, connection: Connection, table: Table) -> list[Table]:
        """The physical tables of a table: itself, or the leaf partitions."""
        return [table]

    def leaf_names(self, connection: Connection, table: Table) -> list[TableName]:
        """Their names alone, which may be much cheaper."""
        return [leaf.name for leaf in self.leaves(connection, table)]

    def leaf(self, connection: Connection, table: Table, partition: str) -> Table | None:
        """One leaf partition; None if there is no such."""
        return next((leaf for leaf in self.leaves(connection, table) if leaf.name.partition == partition), None)

    def discard(self, connection: Connection, name: TableName) -> None:
        """Drop a table that a statement which then failed has just made; only where DDL cannot be rolled back."""
        raise NotImplementedError

    def standalone_name(self, leaf: TableName) -> TableName | None:
        """The name under which a leaf is a table of its own and may have its own policy; None where it cannot be."""
        return None

    def comments(self, connection: Connection) -> list[tuple[TableName, str]]:
        """Comments of tables that may hold a policy."""
        return []

    def identity(self, connection: Connection) -> str | None:
        """What tells this database from a restored or cloned copy of it; None where nothing does."""
        return None

    # Policies

    @abstractmethod
    def check(self, connection: Connection, declared: Declared, previous: Policy | None) -> list[str]:
        """Refuse what cannot work, with nothing changed; returns notices."""

    @abstractmethod
    def install(self, connection: Connection, declared: Declared, previous: Policy | None) -> None:
        """Make the database match the policy: managed column, triggers, view. Must be repeatable."""

    @abstractmethod
    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        """Remove everything `install` made. The table may be gone already."""

    @abstractmethod
    def renamed(self, connection: Connection, old: TableName, declared: Declared) -> None:
        """The table was renamed: what carries its name follows."""

    @abstractmethod
    def dropped(self, connection: Connection, name: TableName) -> None:
        """The table is gone: remove what it left behind."""

    @abstractmethod
    def missing_parts(self, connection: Connection, declared: Declared) -> list[str]:
        """What `install` would have made but is not there: drift, in words."""

    @abstractmethod
    def advice(self, connection: Connection, declared: Declared) -> list[Advice]:
        """Indexes, vacuum and foreign keys worth a look for this policy."""

    def upkeep(self, connection: Connection, declared: Declared, deleted_per_day: float) -> list[Advice]:
        """What keeps the space of deleted rows from being reused, and settings that fit the rate of deleting."""
        return []

    def space(self, connection: Connection, declared: Declared) -> list[str]:
        """What deleted rows have left behind that is not cleaned up yet, in words."""
        return []

    def privileges(self, connection: Connection, declared: Declared) -> list[Advice]:
        """What the role of this connection lacks for running jobs, with the GRANT that mends it."""
        return []

    # Deleting

    @abstractmethod
    def condition(self, connection: Connection, declared: Declared, cutoff: datetime) -> str:
        """The condition as SQL with its values written in, for people to read."""

    @abstractmethod
    def choose_path(self, connection: Connection, declared: Declared, cutoff: datetime) -> Path: ...

    @abstractmethod
    def split(self, connection: Connection, target: Target, pieces: int) -> list[KeyRange]:
        """At most `pieces` ranges that together hold every row that has expired by now; each is a task."""

    @abstractmethod
    def estimate_rows(self, connection: Connection, table: Table) -> int:
        """Roughly how many rows, without a scan."""

    def footprint(self, connection: Connection, table: Table) -> Footprint:
        """Size and inserts from counters that the engine keeps anyway, without a scan."""
        return Footprint()

    def covered(self, span: KeyRange, cursor: str | None) -> float | None:
        """Which share of a range lies behind the cursor, 0 to 1; None where that cannot be told."""
        if cursor is None:
            return 0.0
        edges = (span.start, span.end, cursor)
        if not all(edge is not None and edge.lstrip("-").isdigit() for edge in edges):
            return None
        start, end, at = (int(edge) for edge in edges if edge is not None)
        return min(1.0, max(0.0, (at - start) / (end - start))) if end > start else None

    @abstractmethod
    def deleter(self, target: Target, span: KeyRange, cursor: str | None) -> Deleter: ...

    @abstractmethod
    def survey(self, connection: Connection, target: Target) -> Survey:
        """Count what there is, by a scan where nothing cheaper tells."""

    @abstractmethod
    def expiring(
        self, connection: Connection, declared: Declared, instants: Sequence[datetime], *, exact: bool
    ) -> Expiring:
        """Running totals at `instants`, which ascend, by the condition that a job with that cutoff would have.

        Unless `exact`, a large table is not scanned where statistics or a sample of its rows will do.
        """

    @abstractmethod
    def sample(self, connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
        """Some rows that the target would delete."""

    def native_counters(self, connection: Connection) -> Mapping[str, int]:
        """What the engine itself counts about the TTL it has of its own; empty where it has none."""
        return {}

    def reclaim(self, connection: Connection, seconds: float) -> int:
        """Give space back in small steps for about `seconds`; returns bytes, 0 where the engine does it by itself."""
        return 0

    def gauges(self, connection: Connection) -> list[Gauge]:
        """How strained the server is, from what this role may read; cheap enough for once a second."""
        return []

    def scalar(self, connection: Connection, sql: str) -> float:
        """The number that a query of the operator's own gives, for a gate."""
        value = connection.exec_driver_sql(sql).scalar()
        return float(value) if value is not None else 0.0

    # Statements of the user's

    def begin_implicitly(self, raw: Any, verb: str) -> None:  # noqa: B027 - only where the driver does not
        """Open a transaction before a statement, where PEP 249 wants one and the driver would not."""

    @abstractmethod
    def create_statement(self, connection: Connection, table: Table) -> str:
        """`CREATE TABLE …` as the database remembers it."""


__all__ = [
    "Advice",
    "Batch",
    "Checkpoint",
    "Declared",
    "Deleter",
    "Engine",
    "Expiring",
    "Footprint",
    "Gauge",
    "Survey",
    "Target",
]
