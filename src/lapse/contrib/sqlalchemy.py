"""TTL declared on SQLAlchemy tables: `Table(…, info={"lapse": {…}})`, with the keys of `lapse.toml`.

class Session(Base):
    __tablename__ = "sessions"
    __table_args__ = {"info": {"lapse": {"ttl_expire_after": "8 hours"}}}

lapse.contrib.sqlalchemy.apply(Base.metadata, "postgresql://…")
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import MetaData

from lapse.app import Lapse, Plan, PolicyFile
from lapse.app.policyfile import entry_from_keys
from lapse.errors import PolicyConflict

INFO_KEY = "lapse"


def policies_of(metadata: MetaData) -> PolicyFile:
    """What the tables of a metadata say about TTL; a table without a word is left alone."""
    entries = [
        entry_from_keys(table.fullname, table.info[INFO_KEY], place=f"table {table.fullname}")
        for table in metadata.sorted_tables
        if INFO_KEY in table.info
    ]
    return PolicyFile(path=Path("metadata"), environment=None, url=None, tables=tuple(entries))


def plan(metadata: MetaData, url: str) -> Plan:
    """What `apply` would change; changes nothing."""
    with Lapse(url) as database:
        return database.plan(policies_of(metadata))


def apply(metadata: MetaData, url: str) -> Plan:
    """Make the database have the policies of the tables, which must exist; returns what was changed."""
    with Lapse(url) as database:
        found = database.plan(policies_of(metadata))
        if found.problems:
            first = found.problems[0]
            raise PolicyConflict(f"{first.place}: {first.text}")
        database.apply(found)
        return found


__all__ = ["INFO_KEY", "apply", "plan", "policies_of"]
