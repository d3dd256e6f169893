"""Keys of deleted rows, as stored: one row per batch, written in the transaction that deletes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from secrets import token_bytes
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, false, func, insert, literal, or_, select
from sqlalchemy.exc import IntegrityError

from lapse.catalog.schema import ledger_key, secret
from lapse.errors import Retryable
from lapse.model.ledger import written_at
from lapse.model.ledger_keys import GROUPED, SECRET_BYTES, AskedKey, Noted, Secret, digest_of
from lapse.model.table import TableName

READ_AT_ONCE = 50
"""Batches, of which each may have some thousand keys."""
_NOTE = insert(ledger_key).inline()


@dataclass(frozen=True, kw_only=True, slots=True)
class Deletion:
    """A batch that has deleted a row with the key that was asked for. `times` is more than one where rows with that key
    went twice in one batch, or the hashes of two keys are the same."""

    job: int
    at: str
    times: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """How many keys of a table are on record, in batches from `since` to `until`."""

    rows: int
    since: str | None = None
    until: str | None = None


def secret_of(connection: Connection, table: TableName) -> Secret:
    """Made where there is none yet, in the caller's transaction. Only where workers hash; raises Retryable."""
    found = connection.execute(select(secret).where(*_for(table, secret), secret.c.role_name == "")).mappings().first()
    if found is not None:
        return Secret(id=found["secret_id"], value=bytes(found["value"]))
    value = token_bytes(SECRET_BYTES)
    values = {"role_name": "", "schema_name": table.schema or "", "table_name": table.name, "value": value}
    try:
        made = connection.execute(insert(secret), values)
    except IntegrityError as error:
        raise Retryable(f"another worker has just made the secret of table {table}") from error
    return Secret(id=int(made.inserted_primary_key[0]), value=value)  # type: ignore[index]


def note(connection: Connection, *, job: int, table: TableName, noted: Noted, now: datetime) -> None:
    """In the transaction of the batch."""
    connection.execute(
        _NOTE,
        {
            "job_id": job,
            "schema_name": table.schema or "",
            "table_name": table.name,
            "secret_id": noted.secret,
            "deleted_at": written_at(now),
            "row_count": noted.rows,
            "digest": noted.digest,
            "hashes": noted.hashes,
        },
    )


def summary(connection: Connection, job: int) -> dict[str, Any]:
    """What the ledger's entry of a job says about its keys, in the transaction that ends it."""
    found = select(ledger_key.c.row_count, ledger_key.c.digest).where(ledger_key.c.job_id == job)
    batches = [(int(rows), str(digest)) for rows, digest in connection.execute(found.order_by(ledger_key.c.batch_id))]
    return {"rows": sum(rows for rows, _ in batches), "digest": digest_of(batches)}


def fits(connection: Connection, job: int, said: Mapping[str, Any]) -> bool:
    """Are the stored keys of a job those that its entry was written about?"""
    batches = []
    for row in _batches(connection, ledger_key.c.job_id == job):
        noted = _noted(row)
        if not noted.is_whole or noted.digest != row.digest:
            return False
        batches.append((noted.rows, noted.digest))
    return said == {"rows": sum(rows for rows, _ in batches), "digest": digest_of(batches)}


def secrets_used(connection: Connection, table: TableName) -> tuple[list[Secret], int]:
    """Those with which keys of a table were hashed, and how many more there are that this role may not read."""
    wanted = select(ledger_key.c.secret_id).where(*_for(table, ledger_key)).distinct()
    ids = set(connection.execute(wanted).scalars())
    rows = connection.execute(select(secret.c.secret_id, secret.c.value).where(secret.c.secret_id.in_(ids))).all()
    found = [Secret(id=row.secret_id, value=bytes(row.value)) for row in rows]
    return found, len(ids) - len(found)


def deletions(connection: Connection, table: TableName, secrets: Sequence[Secret], asked: AskedKey) -> list[Deletion]:
    """Batches with a row that had this key, the oldest first. Where each key has a hash the server looks, and what it
    finds at a place where no hash begins is left out here."""
    by_id = {secret.id: secret for secret in secrets}
    has = [
        (ledger_key.c.secret_id == secret.id) & _contains(connection, secret.hashed(asked.written))
        for secret in secrets
    ]
    if asked.number is not None:
        has.append(ledger_key.c.secret_id.in_(by_id) & ledger_key.c.digest.startswith(GROUPED))
    found = []
    for row in _batches(connection, *_for(table, ledger_key), or_(false(), *has)):
        times = by_id[row.secret_id].has_deleted(_noted(row), asked)
        if times:
            found.append(Deletion(job=row.job_id, at=row.deleted_at, times=times))
    return found


def extent(connection: Connection, table: TableName) -> Extent:
    columns = (func.sum(ledger_key.c.row_count), func.min(ledger_key.c.deleted_at), func.max(ledger_key.c.deleted_at))
    rows, since, until = connection.execute(select(*columns).where(*_for(table, ledger_key))).one()
    return Extent(rows=int(rows or 0), since=since, until=until)


def prune(connection: Connection, jobs: list[int]) -> None:
    """With the entries of these jobs go their keys."""
    if jobs:
        connection.execute(delete(ledger_key).where(ledger_key.c.job_id.in_(jobs)))


def _batches(connection: Connection, *conditions: ColumnElement[bool]) -> Iterator[Row[Any]]:
    after, query = 0, select(ledger_key).where(*conditions).order_by(ledger_key.c.batch_id).limit(READ_AT_ONCE)
    while True:
        rows = connection.execute(query.where(ledger_key.c.batch_id > after)).all()
        yield from rows
        if len(rows) < READ_AT_ONCE:
            return
        after = rows[-1].batch_id


def _noted(row: Row[Any]) -> Noted:
    grouped = row.digest.startswith(GROUPED)
    return Noted(secret=row.secret_id, rows=row.row_count, hashes=bytes(row.hashes), grouped=grouped)


def _contains(connection: Connection, wanted: bytes) -> ColumnElement[bool]:
    sought = literal(wanted, ledger_key.c.hashes.type)
    if connection.dialect.name == "postgresql":
        return func.pg_catalog.position(ledger_key.c.hashes, sought) > 0
    return func.instr(ledger_key.c.hashes, sought) > 0


def _for(table: TableName, where: Any) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return where.c.schema_name == (table.schema or ""), where.c.table_name == table.name
