"""The engine protocol: everything Lapse needs from a database, documented here once.

Above this layer there is no SQL dialect, no driver error and no `if engine ==`. An engine opens sessions, describes
tables, installs what a policy needs in the database, and deletes expired rows in bounded batches.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from lapse.clock import Clock
from lapse.engines.archive import ArchiveShape
from lapse.engines.cells import Cells, Packs
from lapse.engines.condition import Condition
from lapse.engines.features import Features
from lapse.engines.restoring import ArchiveTable, Dialect
from lapse.engines.values import (
    STATEMENT_SECONDS,
    Advice,
    Batch,
    BoundPolicy,
    ClientRequest,
    Consequences,
    Expiring,
    Footprint,
    Gauge,
    LeafChanges,
    Place,
    Stray,
    Stretch,
    Survey,
    TableComment,
    Target,
    Touched,
)
from lapse.errors import Blocked, DatabaseError, LapseError, TableNotFound, Unsupported
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, KeyRange, Path
from lapse.model.ledger_keys import AskedKey, asked
from lapse.model.policy import Policy
from lapse.model.settings import Settings
from lapse.model.table import MANAGED_COLUMN, Table, TableName

Checkpoint = Callable[[Connection, Batch], None]
"""Called inside the transaction that deletes, so that counts and cursor commit with the rows or not at all."""


Declarations = Callable[[Sequence[TableName]], Mapping[TableName, Policy]]
"""Asks for the policies of some tables, by name."""

R = TypeVar("R")


class Deleter(ABC):
    """Works through one range of a target, batch by batch."""

    is_steady = False
    """Does no row take far longer to delete than others do, or does the database stop a statement that takes long?"""

    @property
    def stretches(self) -> bool:
        """Can the server make the next batches of this range by itself?"""
        return False

    @abstractmethod
    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        """Delete at most `limit` expired rows after the cursor, in one transaction; returns what happened.

        The condition is checked again by the statement that deletes. Rows that others have locked are skipped.
        Raises Retryable, RowUndeletable (nothing was deleted), Drift, Fenced, Interrupted or DatabaseError.
        """

    def stretch(self, limit: int, within: Stretch) -> Batch | None:
        """Several batches of at most `limit` rows, each a transaction of its own that saves where it has come to.

        None where they go one by one. Raises Retryable where one was not as expected, which the next `step` meets, or
        Interrupted or DatabaseUnavailable; what was committed before, the catalog knows.
        """
        return None

    def go_on(self, cursor: str | None) -> None:  # noqa: B027 - for those that make stretches
        """Go on from there."""

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
    user_database: Database
    """Connections of the user's, with the settings that the server gives them and no others; none is used twice."""

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
            yield connection

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[Connection]:
        """One write transaction on a connection of its own: commits at the end, rolls back on an error.

        One that need not be `durable` does not wait for the disk where the engine has the choice; a crash of the server
        may undo it, with everything that was committed after it.
        """
        with self.connection() as connection, self.transaction_on(connection, durable=durable):
            yield connection

    def transaction_on(self, connection: Connection, *, durable: bool = True) -> AbstractContextManager[None]:
        """As `transaction`, on a connection of Lapse's own on which none is open."""
        return self.atomic(connection)

    def user_connection(self) -> Connection:
        """A connection for the user's own statements, each of which commits by itself; close it."""
        return self.user_database.connect()

    @contextmanager
    def bookkeeping(self, connection: Connection) -> Iterator[None]:
        """For Lapse's own statements on a connection of the user's: Lapse's settings inside, the user's after it."""
        yield

    @abstractmethod
    def atomic(self, connection: Connection) -> AbstractContextManager[None]:
        """A context manager: all or nothing on this connection, nested in the transaction that is open, if one is."""

    def declaring(self, connection: Connection, name: TableName) -> AbstractContextManager[None]:
        """As `atomic`, for one declaration at a time on tables of that name; others wait for their turn."""
        return self.atomic(connection)

    @abstractmethod
    def in_transaction(self, connection: Connection) -> bool:
        """Is a transaction open on this connection that the caller will end?"""

    def exclusively(self, connection: Connection) -> AbstractContextManager[None]:
        """No other process installs or upgrades the catalog meanwhile; a no-op where a transaction sees to that."""
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

    def reading_tables(self) -> AbstractContextManager[None]:
        """Inside, a table that stays locked is Blocked, and tried again by itself: other tables do not wait for it."""
        return nullcontext()

    @abstractmethod
    def translate(self, error: DBAPIError) -> LapseError: ...

    @abstractmethod
    def now(self, connection: Connection) -> datetime:
        """The database's clock, or the one that was injected; aware, UTC."""

    @abstractmethod
    def stopwatch(self, connection: Connection) -> datetime:
        """The server's real time, the same for the whole fleet and never injected: for measuring rates."""

    def role(self, connection: Connection) -> str | None:
        """The account whose session this is; None where the engine has none."""
        return None

    def close(self) -> None:
        for database in (*self.pools, self.user_database):
            database.dispose()

    def release(self) -> None:
        """Close the connections that are not in use; others are opened when they are needed."""
        for database in self.pools:
            # Not the database's own `dispose`: it forgets those that are in use, and they would stay open.
            database.pool.dispose()

    @property
    def pools(self) -> Sequence[Database]:
        """Everything that keeps connections open for the next use."""
        return (self.database,)

    @property
    def idle_connections(self) -> int:
        """Those that are open and not in use."""
        return sum(each.pool.checkedin() for each in self.pools if isinstance(each.pool, QueuePool))

    def check_catalog(self, connection: Connection) -> None:  # noqa: B027 - only where there are roles
        """Raises CatalogError where the catalog could run code of a role with fewer rights than this one."""

    def patiently(self, look: Callable[[], R]) -> R:
        """Look at Lapse's own tables, which another process may be making at this very moment."""
        return look()

    def has_former_catalog(self, connection: Connection) -> bool:
        """Is there a catalog in a place where earlier versions had it, from which `prepare_catalog` moves it?"""
        return False

    def prepare_catalog(self, connection: Connection) -> None:  # noqa: B027 - only where there is something to do
        """Make room for the catalog, inside the transaction that installs it; one process at a time gets past here."""

    # From the database's own client

    @property
    def client_version(self) -> int:
        """Grows with every change of what `install_client` makes; 0 where there is nothing to make."""
        return 0

    def install_client(self, connection: Connection) -> bool:
        """Make what people call from the database's own client, inside the transaction that installs the catalog.

        False where this role may not make it, or its names are taken: the catalog is of use without it.
        """
        return True

    def client_advice(self, connection: Connection) -> Advice:
        """Why `install_client` has not made it yet, and what lets it."""
        return Advice(text="the functions for the database's own client are missing", statement="lapse doctor URL")

    def missing_client_parts(self, connection: Connection) -> list[str]:
        """Names of what `install_client` made and that is gone, as far as this role is shown them."""
        return []

    def remove_client(self, connection: Connection) -> None:  # noqa: B027 - only where there are functions
        """Take away what `install_client` has made."""

    def requests_sql(self, connection: Connection) -> str | None:
        """A query for how many requests wait, which can be asked together with others; None where it would fail."""
        return None

    def waiting_requests(self, connection: Connection) -> list[ClientRequest]:
        """What people have asked for and no worker has done yet, the oldest first."""
        return []

    def claim_request(self, connection: Connection, request: ClientRequest) -> bool:
        """False if another worker was faster."""
        return False

    def requested_table(self, connection: Connection, request: ClientRequest) -> tuple[TableName, str]:
        """The table and its owner. Raises NotPermitted where the role that asked does not own the table now.

        Where tables have no owners, rights stand in for ownership, and the worker itself is named as the owner.
        """
        raise TableNotFound("there are no requests here")

    def finish_request(  # noqa: B027 - only where there are functions
        self, connection: Connection, request: ClientRequest, state: str, answer: str
    ) -> None:
        """Say what became of a request."""

    # Tables

    @abstractmethod
    def describe(self, connection: Connection, name: TableName) -> Table:
        """Raises TableNotFound. The name in the result is complete and spelled as the database spells it."""

    def full_name(self, connection: Connection, name: TableName) -> TableName:
        """As the database spells it, with its schema. Raises TableNotFound."""
        return self.describe(connection, name).name

    def full_names(self, connection: Connection, names: Collection[TableName]) -> Mapping[TableName, TableName]:
        """The same for many at once. One that is missing in the answer may exist all the same: `full_name` tells."""
        return {}

    def describe_all(self, connection: Connection, names: Collection[TableName]) -> Mapping[TableName, Table]:
        """Many at once, in a fixed number of statements, on a connection of Lapse's own. One that is missing in the
        answer may exist all the same: `describe` tells."""
        return {}

    def comparable(self, connection: Connection, name: TableName) -> TableName:
        """Equal for two names of one table, which need not exist: complete, in one case where case means nothing."""
        return name

    def after_rename(self, old: TableName, new: TableName) -> TableName:
        """Where a table is once it was renamed to `new`."""
        return TableName(new.name, new.schema or old.schema)

    @abstractmethod
    def tables(self, connection: Connection) -> list[TableName]:
        """Tables a policy could be declared on, Lapse's own left out."""

    def range_column(self, connection: Connection, table: Table) -> str | None:
        """The column whose ranges the table is partitioned by; None for every other table."""
        return None

    def leaves(self, connection: Connection, table: Table) -> list[Table]:
        """The physical tables of a table: itself, or the leaf partitions."""
        return [table]

    def leaf_names(self, connection: Connection, table: Table) -> list[TableName]:
        """Their names alone, which may be much cheaper."""
        return [leaf.name for leaf in self.leaves(connection, table)]

    def leaf_changes(
        self, connection: Connection, table: Table, *, policy_id: int, version: int, now: datetime
    ) -> LeafChanges | None:
        """How the leaves of a partitioned table differ from what the catalog knows of them under this version of its
        policy, compared by the server; None where the engine cannot, and for tables without partitions."""
        return None

    def leaf(self, connection: Connection, table: Table, name: TableName) -> Table | None:
        """One leaf partition; None if the table has no such."""
        return next((leaf for leaf in self.leaves(connection, table) if leaf.name == name), None)

    def discard(self, connection: Connection, name: TableName) -> None:
        """Drop a table that a statement which then failed has just made; only where DDL cannot be rolled back."""
        raise NotImplementedError

    def kin(self, connection: Connection, name: TableName) -> frozenset[TableName]:
        """Other tables that are about rows of this one: those above and below it, where partitions are tables."""
        return frozenset()

    def standalone_name(self, leaf: TableName) -> TableName | None:
        """The name under which a leaf is a table of its own and may have its own policy; None where it cannot be."""
        return None

    def comments(self, connection: Connection) -> list[TableComment]:
        """Comments of tables that may hold a policy, in a fixed number of statements."""
        return []

    def set_comment(self, connection: Connection, name: TableName, text: str) -> None:
        """Only where tables have comments."""
        raise NotImplementedError

    def obeys_by_itself(self, connection: Connection, table: Table, policy: Policy) -> bool:
        """Does the engine's own TTL do what the table's comment says, so that Lapse deletes nothing?"""
        return False

    def refuse_hold(self, connection: Connection, table: Table) -> None:  # noqa: B027 - only where there is such a TTL
        """Raises Unsupported where rows go by the engine's own TTL, which knows no holds."""

    def check_declarer(self, connection: Connection, table: Table) -> None:  # noqa: B027 - only where there are roles
        """Raises NotPermitted where the role of this connection could not delete the table's rows by itself."""

    def declarer_grants(self, connection: Connection, name: TableName, *, creates: bool) -> str | None:
        """The statements that give the role of this connection what it lacks for declaring a policy on a table, or for
        creating the table. Raises NotPermitted where only the owner of the table can declare one."""
        return None

    def one_look(self, connection: Connection) -> AbstractContextManager[None]:
        """For several looks at tables, one after the other; where each would have a transaction, they share one."""
        return nullcontext()

    def briefly(self, connection: Connection) -> AbstractContextManager[None]:
        """Inside, no statement of this connection's transaction waits for a lock for more than a second."""
        return nullcontext()

    @abstractmethod
    def limited(self, connection: Connection, seconds: float) -> AbstractContextManager[None]:
        """Inside, statements that only read fail when they take longer or wait for a lock; none is open before."""

    def place(self, connection: Connection) -> Place | None:
        """Where this database is; None where it cannot be copied behind Lapse's back."""
        return None

    def whereabouts(self, connection: Connection) -> tuple[datetime, Place | None]:
        """`now` and `place`, asked together where that is one question less."""
        return self.now(connection), self.place(connection)

    # Arming

    def table_id(self, connection: Connection, table: Table) -> str | None:
        """What tells this table from another that takes its name; None where the database keeps nothing of the kind."""
        return None

    def arm(self, connection: Connection, declared: BoundPolicy) -> str:
        """What a policy is declared on, as text: which table this is, and the columns that it reads."""
        columns = []
        for name in declared.columns_read:
            column = declared.table.column(name)
            # A managed column is Lapse's own, and a repair may have made it anew.
            is_own = name == MANAGED_COLUMN and declared.policy.expire_after is not None
            known = [] if column is None or column.number is None or is_own else [column.number]
            columns.append([name, None if column is None else column.type.lower(), *known])
        return json.dumps({"table": self.table_id(connection, declared.table), "columns": columns})

    def check_armed(self, connection: Connection, declared: BoundPolicy, armed: str) -> str:
        """Is this still what was armed, with everything that Lapse installed in place? Raises Blocked where it is not.

        Returns the text to remember, which is another one where only the server's own number for the table has changed.
        Asked before a job is created and before a task begins; deleters ask its core again in every transaction.
        """
        name, then, now = declared.table.name.whole, json.loads(armed), json.loads(self.arm(connection, declared))
        if then["table"] != now["table"]:
            raise Blocked(
                BlockCode.TABLE_REPLACED,
                f"table {name} is not the one that the policy was declared on: it was replaced by another of that name",
                hint=f"check that the policy is meant for it, then: lapse resume URL {name}",
            )
        if not _are_same(then["columns"], now["columns"]):
            raise Blocked(
                BlockCode.COLUMN_CHANGED,
                f"a column of table {name} that the policy reads was changed: {_difference(then, now)}",
                hint=f"check that the policy still means what it should, then: lapse resume URL {name}",
            )
        missing = self.missing_parts(connection, declared)
        if missing:
            raise Blocked(
                BlockCode.PARTS_MISSING,
                f"missing in the database: {', '.join(missing)}",
                hint="lapse doctor URL --repair",
            )
        return armed if then["columns"] == now["columns"] else json.dumps(then | {"columns": now["columns"]})

    def renew_parts(self, connection: Connection, declared: BoundPolicy) -> None:  # noqa: B027 - only where they differ
        """Bring what an earlier version of Lapse has installed up to date."""

    def rearm(self, connection: Connection, declared: BoundPolicy) -> None:  # noqa: B027 - only where there is such a thing
        """Make anew what knows the table by its identity: a person says that the policy is meant for it as it is."""

    # Policies

    @abstractmethod
    def check(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> list[str]:
        """Refuse what cannot work, with nothing changed; returns notices."""

    @abstractmethod
    def install(self, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> Table:
        """Make the database match the policy: managed column, triggers, view. Must be repeatable.

        Returns the table as it is then."""

    def changes_hands(self, connection: Connection, declared: BoundPolicy) -> bool:
        """Will `install` make Lapse's job delete what the database's own TTL has deleted, or the other way round? That
        alters the table, so it is armed anew."""
        return False

    @abstractmethod
    def uninstall(self, connection: Connection, table: Table, policy: Policy) -> None:
        """Remove everything `install` made. The table may be gone already."""

    @abstractmethod
    def renamed(self, connection: Connection, old: TableName, declared: BoundPolicy) -> None:
        """The table was renamed: what carries its name follows."""

    def rebuilding(self, connection: Connection, declared: BoundPolicy) -> AbstractContextManager[None]:
        """Inside, a migration tool may make the table anew under its name; where tables are changed in that way, what
        the policy had put there is put back."""
        return nullcontext()

    @abstractmethod
    def dropped(self, connection: Connection, name: TableName) -> None:
        """The table is gone: remove what it left behind."""

    @abstractmethod
    def missing_parts(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        """What `install` would have made but is not there: drift, in words."""

    def strays(self, connection: Connection) -> list[Stray]:
        """Partitions that jobs have detached and that no job will drop any more."""
        return []

    def repair(self, connection: Connection, stray: Stray) -> None:
        """Make a stray partition what it was, inside the caller's transaction."""
        raise NotImplementedError

    @abstractmethod
    def advice(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        """Indexes, vacuum and foreign keys worth a look for this policy."""

    def upkeep(self, connection: Connection, declared: BoundPolicy, deleted_per_day: float) -> list[Advice]:
        """What keeps the space of deleted rows from being reused, and settings that fit the rate of deleting."""
        return []

    def space(self, connection: Connection, declared: BoundPolicy) -> list[str]:
        """What deleted rows have left behind that is not cleaned up yet, in words."""
        return []

    def privileges(self, connection: Connection, declared: BoundPolicy) -> list[Advice]:
        """What the role of this connection lacks for running jobs, with the GRANT that gives it."""
        return []

    def excess_privileges(self, connection: Connection) -> list[Advice]:
        """What the role of this connection may do beyond what running jobs takes."""
        return []

    # Keys of deleted rows

    @abstractmethod
    def asked_key(self, connection: Connection, table: Table, values: Sequence[str]) -> AskedKey:
        """A primary key, of which each column has a value, as it is hashed when the row is deleted. Raises InvalidValue
        for what cannot be one."""

    def guessed_keys(self, values: Sequence[str]) -> Sequence[AskedKey]:
        """The same for a table that is gone, whose types are not known: all that it may have been."""
        return [asked([each.encode() for each in values])]

    # Archives

    @property
    @abstractmethod
    def archives(self) -> Dialect:
        """How archive tables are read and restored from."""

    @property
    @abstractmethod
    def cells(self) -> Cells:
        """How rows go into files and come back."""

    @property
    def packs(self) -> Packs:
        """For outboxes that hold packs: those of which `archive_table` says so."""
        raise Unsupported(f"outboxes hold no packs on {self.name}")

    def archive_table(self, connection: Connection, name: TableName) -> ArchiveTable:
        """An archive table or outbox, for reading from it and removing rows."""
        return ArchiveTable(self.archives, name)

    @abstractmethod
    def archive_shape(self, connection: Connection, name: TableName, table: TableName) -> ArchiveShape | None:
        """An archive table as it is now, beside that of `table`; None where there is none of that name."""

    @abstractmethod
    def column_types(self, connection: Connection, name: TableName) -> Mapping[str, str]:
        """Exact types, by the columns of a table, as `archive_shape` tells them."""

    @contextmanager
    def outbox(self, name: TableName) -> Iterator[Connection]:
        """A connection for reading an outbox, which runs nothing that its owner has written. Raises as `lock_outbox`
        does."""
        with self.connection() as connection:
            yield connection

    def lock_outbox(self, connection: Connection, name: TableName) -> None:
        """Until the transaction ends, reading from it and removing rows runs nothing that its owner has written.
        Raises Blocked where it is not an outbox any more, and NotPermitted."""
        return

    def restoring(self, connection: Connection, table: Table) -> AbstractContextManager[None]:
        """Inside, in the caller's transaction, rows are inserted with the values that they had. Raises NotPermitted
        where what belongs to the table would run with rights that its owner lacks."""
        return nullcontext()

    # Deleting

    def target(
        self,
        connection: Connection,
        declared: BoundPolicy,
        cutoff: datetime,
        *,
        path: Path | None = None,
        armed: str = "",
        job: int = 0,
        statement_seconds: float = STATEMENT_SECONDS,
    ) -> Target:
        """What a job with this cutoff works on; the path is chosen where none is given."""
        condition = self.condition(connection, declared, cutoff)
        return Target(
            declared=declared,
            cutoff=cutoff,
            condition=condition,
            path=path or self.choose_path(connection, declared, cutoff, condition),
            armed=armed,
            job=job,
            statement_seconds=statement_seconds,
        )

    @abstractmethod
    def condition(self, connection: Connection, declared: BoundPolicy, cutoff: datetime) -> Condition:
        """Which rows a job with this cutoff may delete, with its values written in."""

    @abstractmethod
    def choose_path(
        self, connection: Connection, declared: BoundPolicy, cutoff: datetime, found: Condition
    ) -> Path: ...

    def clean_leaves(
        self,
        connection: Connection,
        declared: BoundPolicy,
        names: Sequence[TableName],
        cutoff: datetime,
        *,
        until: datetime,
    ) -> dict[TableName, datetime]:
        """Those of these leaves of a table that cannot hold a row that has expired at the cutoff, by their bounds
        alone, in a fixed number of statements; and how long each cannot, up to `until`, while it keeps its bounds.

        There may be more of them.
        """
        return {}

    @abstractmethod
    def split(self, connection: Connection, target: Target, pieces: int, *, looks: bool = True) -> list[KeyRange]:
        """At most `pieces` ranges that together hold every row that has expired by now; each is a task.

        Without `looks`, a small table in which nothing has expired is not looked through to say so.
        """

    def planned_rows(self, connection: Connection, target: Target) -> int:
        """As `estimate_rows`, of a table whose job is being planned: what that needs may be asked with it."""
        return self.estimate_rows(connection, target.declared.table)

    @abstractmethod
    def estimate_rows(self, connection: Connection, table: Table) -> int:
        """Roughly how many rows, without a scan."""

    @abstractmethod
    def footprints(self, connection: Connection, names: Sequence[TableName]) -> dict[TableName, Footprint]:
        """Of many tables, from what the engine has at hand: without a scan, without waiting for a lock, in a number of
        statements that does not grow with that of the tables. One that is gone is missing."""

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
        self, connection: Connection, declared: BoundPolicy, instants: Sequence[datetime], *, exact: bool
    ) -> Expiring:
        """Running totals at `instants`, which ascend, by the condition that a job with that cutoff would have.

        Unless `exact`, a large table is not scanned where statistics or a sample of its rows will do.
        """

    @abstractmethod
    def sample(self, connection: Connection, target: Target, count: int) -> list[Mapping[str, object]]:
        """Some rows that the target would delete."""

    @abstractmethod
    def consequences(self, connection: Connection, target: Target, expired: int, seconds: float | None) -> Consequences:
        """What foreign keys make of deleting the target's rows, of which there are about `expired`: rows that are held,
        and rows that cascades delete or change, to any depth.

        A bounded number of rows is read, for about so many `seconds`; None takes the time that an exact answer takes.
        A large table that would have to be scanned, or that this role may not read, is left out and named.
        """

    def write_blocker(self, connection: Connection) -> str | None:
        """What keeps every writer of this database waiting at this moment; None where only single tables are locked."""
        return None

    def native_counters(self, connection: Connection) -> Mapping[str, int]:
        """What the engine itself counts about the TTL it has of its own; empty where it has none."""
        return {}

    def undeclared(self, connection: Connection, declared: Declarations) -> dict[TableName, Advice]:
        """Tables that the database itself deletes from, and that have no policy, or one that means other rows now."""
        return {}

    def native_jobs(self, connection: Connection, name: TableName | None, limit: int) -> list[Job]:
        """Jobs that the database ran by its own TTL, with or without a policy, newest first."""
        return []

    def has_setting(self, name: str) -> bool:
        """Is this one of the server's own variables, although it is called like a setting of Lapse's?"""
        return False

    def reclaim(self, connection: Connection, seconds: float) -> int:
        """Give space back in small steps for about `seconds`; returns bytes, 0 where the engine does it by itself."""
        return 0

    def gauges(self, connection: Connection, settings: Settings) -> list[Gauge]:
        """How strained the server is, from what this role may read; cheap enough for once a second."""
        return []

    def glance(self, connection: Connection, settings: Settings) -> list[Gauge]:
        """Those gauges that jump about from one moment to the next, for looks that come before the first judgement."""
        return self.gauges(connection, settings)

    def table_gauges(self, connection: Connection, settings: Settings, names: Collection[TableName]) -> list[Gauge]:
        """How strained each of these tables is; those that are gone are left out."""
        return []

    def scalar(self, connection: Connection, sql: str) -> float:
        """The number that a query of the operator's own gives, for a gate."""
        value = connection.exec_driver_sql(sql).scalar()
        return float(value) if value is not None else 0.0

    # Statements of the user's

    def set_autocommit(self, raw: Any, value: bool) -> None:  # noqa: B027 - only where the server begins by itself
        """Whether each statement on a connection of the user's commits by itself."""

    def begin_implicitly(self, raw: Any, verb: str) -> None:  # noqa: B027 - only where server and driver do not
        """Open a transaction before a statement, where PEP 249 wants one and nothing else would."""

    @abstractmethod
    def create_statement(self, connection: Connection, table: Table) -> str:
        """`CREATE TABLE …` as the database remembers it."""


def _are_same(then: Sequence[Sequence[object]], now: Sequence[Sequence[object]]) -> bool:
    """Earlier versions remembered no numbers of columns."""
    return len(then) == len(now) and all(list(new[: len(old)]) == list(old) for old, new in zip(then, now, strict=True))


def _difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    def words(columns: Sequence[Sequence[object]]) -> str:
        return ", ".join(
            " ".join([f"{name} {kind}", *(f"(column {number})" for number in numbers)])
            for name, kind, *numbers in columns
        )

    return f"{words(then['columns'])} became {words(now['columns'])}"


__all__ = [
    "Advice",
    "Batch",
    "BoundPolicy",
    "Checkpoint",
    "ClientRequest",
    "Condition",
    "Consequences",
    "Declarations",
    "Deleter",
    "Engine",
    "Expiring",
    "Footprint",
    "Gauge",
    "LeafChanges",
    "Place",
    "Stray",
    "Stretch",
    "Survey",
    "TableComment",
    "Target",
    "Touched",
]
