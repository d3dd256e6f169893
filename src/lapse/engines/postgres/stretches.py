"""Several batches in one message: a block of PL/pgSQL sweeps window after window, each in a transaction of its own.

The worker's part of a batch, its trips to the server and its books, costs an application on the same machine as much as
the deleting. Each transaction calls the table's batch function and saves the task's progress, as if it had come alone;
between two of them the server rests as long as the controller says. The block is a statement of the worker's: it runs
with the worker's rights, and nothing of it is kept in the database.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Stretch
from lapse.engines.postgres.calling import CHECKPOINT_LOCK_MS, moment
from lapse.engines.postgres.delete import CHANCE_MS, WORKING, Work, marked
from lapse.engines.postgres.names import SAFE_PATH, literal
from lapse.engines.postgres.session import FOREIGN_CODE, send

WEIGHT = 0.75
"""Share of what earlier batches took that stays in the average by which the size is fitted: as `runner.batching` has
it for batches that go one by one, and so are the steps by which the size may grow."""
CHANNEL = "lapse.stretch"
"""The session's setting that tells a block its arguments, and in which it says at its end what it has done, after all
that triggers could say."""
_ARGUMENT = """\
    lapse_{name} pg_catalog.{kind} := (lapse_in OPERATOR(pg_catalog.->>) '{name}')::pg_catalog.{kind};
"""
_MOMENTS = "ARRAY[lapse_moment]::pg_catalog.timestamptz[]"
_THRESHOLDS = "ARRAY[lapse_threshold]::pg_catalog.text[]"
_FITTING = (
    "LEAST(lapse_most, pg_catalog.floor(lapse_fill OPERATOR(pg_catalog.*) lapse_limit"
    " OPERATOR(pg_catalog./) GREATEST(lapse_density, 1e-9)))::pg_catalog.int8"
)
"""How many blocks probably hold that share of the limit, as dense as the last window was."""
_NUMBERS = "ARRAY[lapse_limit, 0, lapse_job]::pg_catalog.int8[]"
SHORTEST_REST_SECONDS = 0.001
"""What is owed of a rest adds up until then: the server's own sleep counts in milliseconds."""
LONGEST_REST_SECONDS = 0.5
_PLACES = (
    "ARRAY[pg_catalog.concat('(', lapse_block, ',', lapse_line, ')'), pg_catalog.concat('(', lapse_next, ',0)')]"
    "::pg_catalog.text[]"
)
_CHECK = """\
        IF {unsound} THEN
            RAISE EXCEPTION USING MESSAGE = 'the table''s function or its triggers have left something behind';
        END IF;
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Where a stretch begins, at a line of a block: with so many `blocks`, never with more than `most`, up to `end`;
    later ones aim at finding the share `fill` of the limit.
    `density` is how many rows of a block are thought to have expired; it ends where those are fewer than `sparse`."""

    block: int
    line: int
    blocks: int
    most: int
    end: int
    density: float
    sparse: float
    fill: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Went:
    """What a stretch came to: the place it reached, its windows, the rows it deleted, and its seconds."""

    block: int
    line: int
    windows: int
    density: float
    rows: int
    busy: float
    rested: float
    holds: list[float]
    size: int
    row_seconds: float


def go(connection: Connection, work: Work, limit: int, within: Stretch, window: Window, *, slowest_ms: int) -> Went:
    """A statement in it may take `slowest_ms`. What was committed before an error, the catalog knows."""
    if not work.function.is_own:
        connection.info[FOREIGN_CODE] = True
    arguments = _arguments(work, limit, within, window)
    # Of the block as a whole, so set before it, and for the session.
    lasts_ms = int(1000 * (within.seconds + LONGEST_REST_SECONDS)) + slowest_ms
    settings = {"statement_timeout": str(lasts_ms), CHANNEL: json.dumps(arguments)}
    send(connection, f"SELECT {_set(settings, locally=False)}")
    try:
        send(connection, _block(connection, work, within, arguments))
    except BaseException:
        if not connection.invalidated:
            with suppress(DBAPIError):
                send(connection, "RESET statement_timeout")
        raise
    said = send(connection, f"SELECT pg_catalog.current_setting('{CHANNEL}'); RESET statement_timeout")
    return Went(**json.loads(said))


def _arguments(work: Work, limit: int, within: Stretch, window: Window) -> dict[str, int | float | str | None]:
    """Given as a setting, so that the text is the same for all stretches of a table: the server's statistics of
    statements have one line for it, and not one for each."""
    return asdict(window) | {
        "seconds": within.seconds,
        "idle": 1 / within.share - 1,
        "shortest": SHORTEST_REST_SECONDS,
        "longest": LONGEST_REST_SECONDS,
        "limit": limit,
        "least": within.least,
        "ceiling": within.most,
        "target": within.batch_seconds,
        "job": work.job,
        "moment": moment(work.cutoff),
        "threshold": work.threshold,
        "message": work.message,
        **{f"saved_{name}": value for name, value in within.values.items()},
    }


def _block(
    connection: Connection, work: Work, within: Stretch, arguments: Mapping[str, int | float | str | None]
) -> str:
    names = {name: f"lapse_saved_{name}" for name in within.values}
    settings = _set(WORKING | {"search_path": SAFE_PATH, "lock_timeout": str(CHANCE_MS)})
    text = _text().format(
        channel=CHANNEL,
        arguments="".join(_ARGUMENT.format(name=name, kind=_kind(value)) for name, value in arguments.items()),
        settings=settings if work.message is None else f"{settings}, {marked('lapse_message')}",
        after=_set({"search_path": SAFE_PATH, "lock_timeout": str(CHECKPOINT_LOCK_MS)}),
        call=work.function.call_with(
            "sweep", moments=_MOMENTS, thresholds=_THRESHOLDS, numbers=_NUMBERS, places=_PLACES
        ),
        path=work.function.path(connection),
        fitting=_FITTING,
        weight=f"{WEIGHT}::pg_catalog.float8",
        checks="" if work.function.is_own else _CHECK.format(unsound=work.function.unsound),
        saves=within.saves.format(cursor="lapse_cursor", rows="lapse_rows", **names),
    )
    return f"DO {literal(text)}"


def _kind(value: object) -> str:
    return {int: "int8", float: "float8"}.get(type(value), "text")


def _set(settings: dict[str, str], *, locally: bool = True) -> str:
    """For the transaction that is open, or for the session."""
    given = ((literal(name), literal(value), str(locally).lower()) for name, value in settings.items())
    return ", ".join(f"pg_catalog.set_config({', '.join(each)})" for each in given)


@cache
def _text() -> str:
    return files("lapse.engines.postgres").joinpath("stretch.sql").read_text(encoding="utf-8")
