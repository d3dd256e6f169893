"""Cutting a job into tasks: ranges of the heap blocks that hold what has expired."""

from __future__ import annotations

from itertools import pairwise

from sqlalchemy import Connection

from lapse.engines.base import Target
from lapse.engines.postgres import paths
from lapse.engines.postgres.calling import TableFacts
from lapse.engines.postgres.reads import Read
from lapse.model.job import KeyRange, PathKind

PRESCAN_MS = 100
"""How long a look may take in a table without an index, and where `ttl_select_rate_limit` is set."""
BLOCK_BYTES = 8192
"""Almost everywhere."""


def is_whole(target: Target) -> bool:
    """Is the job one task, whatever is in the table?"""
    return target.path.kind in (PathKind.INDEX, PathKind.PARTITION)


def ranges(connection: Connection, target: Target, pieces: int, known: TableFacts, *, looks: bool) -> list[KeyRange]:
    """`known` was asked a moment ago."""
    first, end = expired_blocks(connection, target, known, looks=looks)
    edges = sorted({first + (end - first) * i // pieces for i in range(pieces + 1)})
    return [KeyRange(start=str(a), end=str(b)) for a, b in pairwise(edges)]


def expired_blocks(connection: Connection, target: Target, known: TableFacts, *, looks: bool) -> tuple[int, int]:
    """The blocks that hold what has expired, the second bound excluded; equal where nothing has.

    An index that rules blocks out bounds them without reading the others. With `looks`, a small table is looked through
    for a single expired row. Neither may take long: it is done for one table after another, and no gate is asked.
    """
    if target.path.finds_nothing:
        return 0, 0
    total, declared, moments = known.heap.blocks, target.declared, [target.cutoff]
    if target.path.index is not None:
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        most = PRESCAN_MS if declared.policy.select_rate_limit else paths.PROBE_MS
        extent = paths.within(connection, most, declared, moments, Read.EXTENT, known=known)
        if extent is paths.TOO_LONG:
            return 0, total
        low, high = extent
        return (_block(low), min(_block(high) + 1, total)) if low is not None else (0, 0)
    if not looks or not target.fits_one_scan(total * BLOCK_BYTES):
        return 0, total
    one = paths.within(connection, PRESCAN_MS, declared, moments, Read.ANY, known=known)
    return (0, 0) if one is None else (0, total)


def _block(address: str) -> int:
    return int(address.strip("()").split(",")[0])
