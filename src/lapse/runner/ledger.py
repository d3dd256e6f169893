"""Keeps the ledger: seals entries into the chain soon after they were recorded, and prunes those that are too old."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from sqlalchemy import Connection

from lapse.catalog import Catalog, ledger
from lapse.errors import NotPermitted, Retryable
from lapse.model.settings import Settings
from lapse.runner.retry import retried


@retried
def seal(catalog: Catalog) -> None:
    """Give all entries that are committed their places in the chain. Raises LapseError."""
    more = True
    while more:
        with catalog.writing() as connection:
            more = ledger.seal(connection, skips_locked=catalog.engine.features.skips_locked)


def seal_soon(catalog: Catalog) -> None:
    """As `seal`; what another session keeps this one from sealing is sealed in the next round."""
    with suppress(Retryable):
        seal(catalog)


def is_prunable(connection: Connection, current: Settings, now: datetime) -> bool:
    """Is there an entry that is older than a person has said entries are kept?"""
    keep = current.ledger_retention
    return keep is not None and ledger.has_older(connection, keep.subtracted_from(now))


@retried
def prune(catalog: Catalog, current: Settings, now: datetime) -> None:
    """Where a person has said how long entries are kept, and this role may remove some; `lapse doctor` tells others."""
    if current.ledger_retention is None:
        return
    before = current.ledger_retention.subtracted_from(now)
    with suppress(NotPermitted), catalog.writing() as connection:
        ledger.prune(connection, before=before, now=now)
