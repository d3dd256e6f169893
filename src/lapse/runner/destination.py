"""The destination of an archive in files: tried when it is declared, and claimed for the database."""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import Connection

from lapse.archive import Archive, open_allowed
from lapse.catalog import meta
from lapse.engines.base import BoundPolicy, Engine
from lapse.errors import ArchiveConflict
from lapse.model.archive import file_url
from lapse.model.policy import Policy


def new_destination(wanted: Policy, previous: Policy | None) -> str | None:
    """Where files go, if they did not go there before."""
    url = None if wanted.archive is None else file_url(wanted.archive)
    before = None if previous is None or previous.archive is None else file_url(previous.archive)
    return None if url == before else url


def check(engine: Engine, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> None:
    """Before anything is changed. Raises Unsupported for a column that no file can hold exactly, and ArchiveError where
    a file cannot be written, read and removed there."""
    url = new_destination(declared.policy, previous)
    if url is not None:
        engine.cells.columns(connection, declared.table.name)
        open_allowed(url).probe()


def claim(connection: Connection, wanted: Policy, previous: Policy | None) -> None:
    """Of two databases only one writes to an archive. `connection` is the catalog's."""
    url = new_destination(wanted, previous)
    if url is None:
        return
    owner = meta.read_fact(connection, meta.ARCHIVE_OWNER)
    if owner is None:
        meta.replace_fact(connection, meta.ARCHIVE_OWNER, None, uuid4().hex)
        owner = meta.read_fact(connection, meta.ARCHIVE_OWNER)
    open_allowed(url).claim(str(owner))


def open_claimed(connection: Connection, url: str) -> Archive:
    """The archive of this database. Raises ArchiveError where it is away, or another database's."""
    owner = meta.read_fact(connection, meta.ARCHIVE_OWNER)
    archive = open_allowed(url)
    if owner is None:
        raise ArchiveConflict(
            f"{url} was not declared in this database, but in the one that it is a copy of",
            hint="declare another destination: ALTER TABLE … SET (ttl_archive = '…')",
        )
    archive.check_owner(owner)
    return archive
