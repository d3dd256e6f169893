"""Is this still the table that a policy was declared on?

The servers number their tables, but OPTIMIZE TABLE and some ALTERs make a new number, and every replica has numbers of
its own. So a number, or a time of creation, that is the same settles it; one that has changed is judged by what else is
known: which statements the server has executed since the last look, where the old number is now, and whether some rows
that were seen then are still there with the same times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from lapse.engines.base import BoundPolicy
from lapse.engines.mysql import inspect, keys, managed, server, zones
from lapse.engines.mysql.inspect import Sight
from lapse.engines.mysql.keys import Walk
from lapse.engines.mysql.names import insert_trigger, quote, source, update_trigger
from lapse.engines.zones import block_guess
from lapse.errors import Blocked, Drift, Retryable
from lapse.model.blocked import BlockCode
from lapse.model.table import MANAGED_COLUMN, Table, TableName

WITNESSES = 16
"""Rows remembered from each end of the key."""
MOST_BYTES = 8_000
"""Of remembered rows, where keys are long."""
MOST_SERVERS = 8
"""Nodes of a cluster, and servers before a failover, whose numbers are remembered."""
LASTS = timedelta(minutes=5)
"""After so long rows are looked for anew: old ones expire."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What one server said about the table. `ids` are InnoDB's numbers, empty where this account may not see them."""

    at: str
    born: str | None
    ids: Mapping[str, int]
    started: int
    done: Mapping[str, int]
    """How many statements of each kind the server has executed."""

    renaming_makes_young: bool = True
    """If not, tables that were made in the same second can be swapped, and every time stays as it was."""

    def tells(self, born: str | None) -> bool:
        """Is a table of that time of creation surely this one?"""
        return self.born == born and self.renaming_makes_young and not (self.ids and self.is_young)

    def is_same_as(self, other: Look) -> bool:
        """Is it surely the same table, of the same number? Where its time does not say, nothing was done since that
        could have changed it."""
        if self.renaming_makes_young:
            return self.tells(other.born)
        return (self.born, self.started, self.done) == (other.born, other.started, other.done)

    def replaced_since(self, done: Mapping[str, int]) -> bool:
        """Has the server begun a statement that can put another table in the place of one?"""
        return any(done[kind] != self.done.get(kind, 0) for kind in server.REPLACE)

    def is_of_the_table_in(self, other: Look) -> bool:
        """By the numbers where both have them. Partitions come and go, but not all at once."""
        if self.ids and other.ids:
            return bool(set(self.ids.values()) & set(other.ids.values()))
        return self.born == other.born and self.renaming_makes_young

    @property
    def is_young(self) -> bool:
        """May another table have the same time of creation?"""
        if self.born is None:
            return True
        return datetime.fromisoformat(self.at) - datetime.fromisoformat(self.born) < server.YOUNG


@dataclass(frozen=True, kw_only=True, slots=True)
class Armed:
    """The text that the catalog keeps."""

    columns: Sequence[Sequence[object]]
    """Name, position and type of each column that the policy reads."""
    key: Sequence[str]
    rows: Mapping[str, str]
    """A key, and a digest of what the policy reads of its row."""
    looks: Mapping[str, Look]
    """By server."""
    parts: Sequence[str | None] | None = None
    """Of a managed column: the trigger that renews rows, the default that stamps them, and the trigger that does where
    the default cannot."""

    @property
    def names(self) -> list[str]:
        return [str(column[0]) for column in self.columns]

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Armed | None:
        """None for a text that another version wrote."""
        found = json.loads(text)
        if "looks" not in found:
            return None
        looks = {server: Look(**look) for server, look in found["looks"].items()}
        return cls(
            columns=found["columns"],
            key=found["key"],
            rows=found["rows"],
            looks=looks,
            parts=found.get("parts"),
        )


def arm(connection: Connection, declared: BoundPolicy) -> str:
    table = declared.table
    rules = [rule.column for rule in declared.policy.partitions if rule.column is not None]
    names = [*declared.columns_read, *rules]
    seen, found = look(connection, table.name), columns(connection, table.name, names)
    return Armed(
        columns=found,
        key=table.key,
        rows=witnesses(connection, table, found, key_walk(connection, table)),
        looks={server.identity(connection): seen},
        parts=_parts(connection, table.name, names),
    ).text()


def check(connection: Connection, table: Table, text: str, sight: Sight | None = None) -> str | None:
    """The text to keep; raises Blocked where this is another table, or a column means something else.

    None for a text that says too little, because another version of Lapse wrote it. The table may be altered between
    any two statements. So what is kept of the server's times was read first, and the columns are looked at last: what
    was altered meanwhile does not fit together, and the next batch notices. What the `sight` has told, which was a
    moment ago, is not asked again where that leaves no doubt.
    """
    then = Armed.read(text)
    if then is None:
        return None
    here = server.identity(connection)
    known = then.looks.get(here)
    seen, found = _same(connection, table, then, known, sight)
    is_fresh = known is not None and known.is_same_as(seen) and _age(known, seen.at) < LASTS
    rows: Mapping[str, str] = {}
    if not is_fresh or not then.rows:
        walk = sight.walk if sight is not None else None
        rows = witnesses(connection, table, then.columns, walk or key_walk(connection, table))
    parts = _parts(connection, table.name, then.names)
    if rows or parts is not None:
        born, found = _born_with_columns(connection, table.name, then.names)
        if born != seen.born and sight is not None:
            return check(connection, table, text)
        refuse_other_columns(connection, table, then, found)
    if is_fresh and not rows and found == then.columns and then.parts == parts:
        return text
    others = [(there, each) for there, each in then.looks.items() if there != here]
    return Armed(
        columns=found,
        key=table.key,
        rows=rows or then.rows,
        looks=dict([*others, (here, known if is_fresh and known is not None else seen)][-MOST_SERVERS:]),
        parts=parts,
    ).text()


def refuse_changed(connection: Connection, table: Table, text: str) -> None:
    """As `check`, for what is done with the table at once."""
    then = Armed.read(text)
    if then is not None:
        _same(connection, table, then, then.looks.get(server.identity(connection)), None)


def _same(
    connection: Connection, table: Table, then: Armed, known: Look | None, sight: Sight | None
) -> tuple[Look, list[list[object]]]:
    """What the server says of the table, and the columns that the policy reads. Raises Blocked."""
    history = None if known is None or known.renaming_makes_young else server.history(connection)
    seen = None if known is None or sight is None else _undoubted(known, sight, history or sight.history)
    if seen is not None and sight is not None:
        found = _listed(sight.columns, then.names)
    else:
        seen = look(connection, table.name, ids=None if known is None or known.is_young else known.ids, history=history)
        if known is None or not known.is_same_as(seen):
            if known is not None and not known.is_young:
                seen = look(connection, table.name)
            _refuse_another(connection, table, then, known, seen)
        found = columns(connection, table.name, then.names)
    refuse_other_columns(connection, table, then, found)
    return seen, found


def _undoubted(known: Look, sight: Sight, history: server.History | None) -> Look | None:
    """What was seen of a table that is surely the one that was known; None where that takes another look."""
    if history is None or known.is_young or known.born != sight.born:
        return None
    started, done = history
    seen = replace(known, at=sight.at, started=started, done=done)
    return seen if known.is_same_as(seen) else None


def _parts(connection: Connection, name: TableName, names: Sequence[str]) -> list[str | None] | None:
    if MANAGED_COLUMN not in names:
        return None
    renews, stamps = _triggers(connection, name)
    return [renews, managed.stored_default(connection, name), *([stamps] if stamps is not None else [])]


def _triggers(connection: Connection, name: TableName) -> list[str | None]:
    """The one that renews rows, and the one that stamps them."""
    found = managed.stored_triggers(connection, name)
    return [found.get(update_trigger(name).name), found.get(insert_trigger(name).name)]


class Changed(Retryable):
    """The table was altered after it was looked at; the batch is undone, and it is looked at again."""


class Watch:
    """Asks in the transaction of each batch, whose lock keeps the table from being altered until it ends.

    The server's time of creation changes with every ALTER and RENAME, and is read in a tenth of a millisecond. Making
    or dropping a trigger changes no time.
    """

    def __init__(
        self,
        connection: Connection,
        declared: BoundPolicy,
        text: str,
        walk: Walk,
        *,
        columns_as_well: bool,
    ) -> None:
        """`walk` is along the table's key. `columns_as_well`: on MySQL not every ALTER changes the time."""
        self._declared = declared
        self._name = declared.table.name.whole
        self._text = text
        self._columns_as_well = columns_as_well
        self._server = server.identity(connection)
        self._path: str | None = None
        self._walk: Walk | None = walk
        self._lasting: str | None = None
        self._must_last = False
        self._armed = Armed.read(text) if text else None

    def confirm(self, connection: Connection) -> None:
        """After the first statement of the batch. Raises Changed, or Blocked."""
        self._must_last, as_well = False, self._columns_as_well
        born, now, told, *zone = _born(connection, self._name, f"{_COLUMNS if as_well else 'NULL'}, {zones.COLUMNS}")
        block_guess(self._declared, zones.told(self._declared, zone))
        if self._armed is None:
            return
        known = self._armed.looks.get(self._server)
        tells = known is not None and known.tells(born)
        same = known is not None and known.born == born
        if same and (as_well or known is None or known.is_young):
            names = self._armed.names
            found = _listed(json.loads(told or "[]"), names) if as_well else columns(connection, self._name, names)
            same = found == self._armed.columns
        if same and not tells:
            same = known is not None and self._is_the_one(connection, known)
        if not same:
            raise Changed(f"table {self._name} was altered in the middle of a batch, which is done again")
        if known is not None and known.ids and known.is_young:
            # Its number was looked up just now; when it is older its time alone will tell.
            self._armed = replace(self._armed, looks={**self._armed.looks, self._server: replace(known, at=now)})
        if self._armed.parts is not None:
            self._refuse_other_parts(connection, trigger_only=tells and not self._columns_as_well)

    def _refuse_other_parts(self, connection: Connection, *, trigger_only: bool = False) -> None:
        """Rows are not renewed any more, or not as they were, or are stamped with another time."""
        assert self._armed is not None and self._armed.parts is not None
        renews, default, stamps = (*self._armed.parts, None)[:3]
        found = _triggers(connection, self._name)
        if found[0] != renews:
            what = f"trigger {update_trigger(self._name).name}"
        elif found[1] != stamps:
            what = f"trigger {insert_trigger(self._name).name}"
        elif not trigger_only and managed.stored_default(connection, self._name) != default:
            what = f"default of column {MANAGED_COLUMN}"
        else:
            return
        raise Blocked(BlockCode.PARTS_MISSING, f"missing in the database: {what}", hint="lapse doctor URL --repair")

    def look_again(self, connection: Connection, table: Table) -> None:
        """Outside of a batch. Raises Blocked where it is another table now, or its parts are others."""
        if self._armed is not None and self._armed.parts is not None:
            self._refuse_other_parts(connection)
        self._text = check(connection, table, self._text) or self._text
        self._armed = Armed.read(self._text)
        self._walk = key_walk(connection, table)

    def renew(self, connection: Connection) -> str:
        """The text to keep from now on, in the transaction of a batch, after its delete, which may have taken every row
        that the table was known by."""
        if self._armed is None or not self._armed.rows:
            return self._text
        if self._lasting is not None and self._has_its_rows(connection, self._lasting):
            return self._text
        found = witnesses(connection, self._table, self._armed.columns, self._walk)
        self._lasting = next((key for key, digest in found.items() if self._armed.rows.get(key) == digest), None)
        if self._lasting is None and self._must_last:
            raise Changed(f"the rows that table {self._name} is known by went with a batch, which is done again")
        if self._lasting is None:
            self._armed = replace(self._armed, rows=found)
            self._text = self._armed.text()
        return self._text

    @property
    def _table(self) -> Table:
        return replace(self._declared.table, name=self._name)

    def _is_the_one(self, connection: Connection, known: Look) -> bool:
        """A table of that time of creation, which is no proof.

        A statement is counted when it begins, and may wait. So where a number can be looked up, which takes a
        millisecond and more, a count that has not changed is believed together with a row that was seen before.
        """
        calm = not known.renaming_makes_young and not known.replaced_since(server.executed(connection))
        # One that is there after the delete was there before it: `renew` asks for it anyway.
        self._must_last = calm and bool(known.ids) and self._lasting is not None
        if not known.ids or self._must_last or (calm and self._has_its_rows(connection)):
            return calm
        self._path = self._path or server.path_of(connection, self._name)
        return bool(set(server.table_ids(connection, self._name, self._path).values()) & set(known.ids.values()))

    def _has_its_rows(self, connection: Connection, key: str | None = None) -> str | None:
        """The key of one that is there, or this one where it is.

        Asked where the time of creation and the columns are what they were, and so is the key: no other one could be
        made without changing the time.
        """
        assert self._armed is not None
        wanted = self._armed.rows if key is None else [key]
        return _one_of(connection, self._table, self._armed, wanted, self._walk, self._armed.columns)


def look(
    connection: Connection,
    name: TableName,
    *,
    ids: Mapping[str, int] | None = None,
    history: server.History | None = None,
) -> Look:
    """`ids` where they are known, and `history` where it has just been asked for."""
    started, done = history or server.history(connection)
    found = server.table_ids(connection, name) if ids is None else ids
    born, at, _ = _born(connection, name)
    renaming = server.renaming_makes_young(connection)
    return Look(at=at, born=born, ids=found, started=started, done=done, renaming_makes_young=renaming)


_OF_TABLE = "TABLE_SCHEMA = coalesce(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s"
_COLUMNS = (
    "(SELECT json_arrayagg(json_array(COLUMN_NAME, ORDINAL_POSITION, COLUMN_TYPE))"
    f" FROM information_schema.COLUMNS WHERE {_OF_TABLE})"
)
"""All of a table's, in no order, as a part of another statement. MariaDB would cut a long list short."""


def _born(connection: Connection, name: TableName, more: str = "NULL") -> tuple[str | None, str, *tuple[Any, ...]]:
    """When the table was made, or last altered, the server's time, and `more` that is asked in the same statement."""
    born, now, *others = connection.exec_driver_sql(
        f"SELECT (SELECT CREATE_TIME FROM information_schema.TABLES WHERE {_OF_TABLE}), utc_timestamp(6), {more}",
        {"schema": name.schema, "name": name.name},
    ).one()
    return None if born is None else born.isoformat(), now.isoformat(), *others


def columns(connection: Connection, name: TableName, names: Sequence[str]) -> list[list[object]]:
    """As the server has them now, whatever was read of the table a moment ago."""
    rows = connection.exec_driver_sql(
        f"SELECT COLUMN_NAME, ORDINAL_POSITION, COLUMN_TYPE FROM information_schema.COLUMNS WHERE {_OF_TABLE}",
        {"schema": name.schema, "name": name.name},
    )
    return _listed(rows, names)


def _born_with_columns(
    connection: Connection, name: TableName, names: Sequence[str]
) -> tuple[str | None, list[list[object]]]:
    """As `columns`, and when the table was made, or last altered."""
    rows = connection.exec_driver_sql(
        "SELECT COLUMN_NAME, ORDINAL_POSITION, COLUMN_TYPE,"
        f" (SELECT CREATE_TIME FROM information_schema.TABLES WHERE {_OF_TABLE})"
        f" FROM information_schema.COLUMNS WHERE {_OF_TABLE}",
        {"schema": name.schema, "name": name.name},
    ).all()
    born = rows[0][3] if rows else None
    return None if born is None else born.isoformat(), _listed([tuple(row)[:3] for row in rows], names)


def _listed(rows: Iterable[Sequence[Any]], names: Sequence[str]) -> list[list[object]]:
    wanted = {column.lower() for column in names}
    return [
        [str(column), int(position), plain_type(inspect.text(kind))]
        for column, position, kind in sorted(rows, key=lambda row: int(row[1]))
        if str(column).lower() in wanted
    ]


def plain_type(kind: str) -> str:
    """Without the display width, which newer servers leave out."""
    return re.sub(r"\b((?:tiny|small|medium|big)?int)\(\d+\)", r"\1", kind.lower())


def _refuse_another(connection: Connection, table: Table, then: Armed, known: Look | None, now: Look) -> None:
    name = table.name
    if known is None:
        # Another server, after a failover: it has the rows, if there were any.
        same = not then.rows or _still_there(connection, table, then)
    else:
        same = known.is_of_the_table_in(now) or _was_rebuilt(connection, table, then, known, now)
    if not same:
        raise Blocked(
            BlockCode.TABLE_REPLACED,
            f"table {name.whole} is not the one that the policy was declared on: another one has taken its name",
            hint=f"check that the policy is meant for it, then: lapse resume URL {name.whole}",
        )


def _was_rebuilt(connection: Connection, table: Table, then: Armed, known: Look, now: Look) -> bool:
    """The number, or the time, has changed on the same server: rebuilt in place, or replaced?"""
    numbered = bool(known.ids and now.ids)
    if numbered and server.exist(connection, known.ids.values()):
        return False
    if not numbered and not now.renaming_makes_young and known.born == now.born:
        return _is_still_it(connection, table, then, known, now)
    if known.started == now.started:
        did = {kind: now.done[kind] - known.done.get(kind, 0) for kind in now.done}
        if not any(did[kind] for kind in server.REPLACE):
            return True
        rebuilt = any(did[kind] for kind in server.REBUILD)
        if numbered and (not rebuilt or (did[server.RENAME] and not did[server.OPTIMIZE])):
            # The second is how tools change a table online: a copy of it takes its name.
            return False
        if not then.rows and not did[server.RENAME] and not did[server.CREATE]:
            return True
    return _still_there(connection, table, then)


def _is_still_it(connection: Connection, table: Table, then: Armed, known: Look, now: Look) -> bool:
    """The time of creation is the same, the number cannot be seen, and tables of one second may have been swapped."""
    if _still_there(connection, table, then):
        return True
    if known.started != now.started:
        # What it did before it was started is not known; a table that was empty has no row to be told by.
        return not then.rows
    return not known.replaced_since({**known.done, **{kind: now.done[kind] for kind in server.RENAMES}})


def refuse_other_columns(connection: Connection, table: Table, then: Armed, found: Sequence[Sequence[object]]) -> None:
    if found == then.columns:
        return
    moved = [[each[0], each[2]] for each in found] == [[each[0], each[2]] for each in then.columns]
    if moved and _still_there(connection, table, then):
        # A column was added or dropped before it.
        return
    name, before, after = table.name.whole, _words(then.columns), _words(found)
    raise Blocked(
        BlockCode.COLUMN_CHANGED,
        f"a column of table {name} that the policy reads was changed: {before} became {after or 'nothing'}",
        hint=f"check that the policy still means what it should, then: lapse resume URL {name}",
    )


def _words(found: Sequence[Sequence[object]]) -> str:
    return ", ".join(f"{name} {kind} at position {position}" for name, position, kind in found)


def witnesses(
    connection: Connection, table: Table, read: Sequence[Sequence[object]], walk: Walk | None
) -> dict[str, str]:
    """Some rows from both ends of the key, which is cheap to read and the same on every replica."""
    if walk is None:
        return {}
    ends = (
        f"(SELECT {_digest(read)}, {walk.selected} FROM {source(table.name.whole)}"
        f"{walk.hint()} ORDER BY {order} LIMIT {WITNESSES})"
        for order in (walk.backwards, walk.order)
    )
    rows = connection.exec_driver_sql(" UNION ALL ".join(ends))
    found = {keys.encode(tuple(row)[1:]): str(row[0]) for row in rows}
    kept, size = {}, 0
    for key, digest in found.items():
        size += len(key) + len(digest)
        if size > MOST_BYTES:
            break
        kept[key] = digest
    return kept


def _still_there(connection: Connection, table: Table, then: Armed) -> bool:
    """Is one of the rows that were seen then in this table, with the same times?"""
    read = columns(connection, table.name, then.names)
    if len(read) < len(then.names):
        return False
    return _one_of(connection, table, then, then.rows, key_walk(connection, table), read) is not None


def _one_of(
    connection: Connection,
    table: Table,
    then: Armed,
    wanted: Iterable[str],
    walk: Walk | None,
    read: Sequence[Sequence[object]],
) -> str | None:
    """The first of the keys `wanted` whose row is there with the same times."""
    wanted = list(wanted)
    if walk is None or not wanted or list(then.key) != list(table.key):
        return None
    rows = connection.exec_driver_sql(
        f"SELECT {_digest(read)}, {walk.selected} FROM {source(table.name.whole)}"
        f"{walk.hint()} WHERE {walk.equal([keys.decode(key, walk) for key in wanted])}"
    )
    found = {keys.encode(tuple(row)[1:]): str(row[0]) for row in rows}
    return next((key for key in wanted if key in found and found[key] == then.rows.get(key)), None)


def key_walk(connection: Connection, table: Table) -> Walk | None:
    if not table.key:
        return None
    try:
        return keys.load(connection, table.name, inspect.key_index(table))
    except (Drift, StopIteration):
        return None


def _digest(read: Sequence[Sequence[object]]) -> str:
    """Of the columns that the policy reads, in the order of their names, which moving them does not change."""
    parts = [f"coalesce(hex({quote(name)}), '-')" for name in sorted(str(each[0]) for each in read)]
    return f"left(sha2(concat_ws(' ', {', '.join(parts) or repr('-')}), 256), 16)"


def _age(known: Look, now: str) -> timedelta:
    return datetime.fromisoformat(now) - datetime.fromisoformat(known.at)
