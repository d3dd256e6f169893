"""RocksDB bare and with Lapse in turns of a thousand rows, all of them open at once: on a machine with other work this
shows differences of a few hundredths, which whole passes one after the other do not."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import lapse.kv
from bench.kv import BATCH_ROWS, TTLS, Rows, batches, flush_tables, folder

HEAD = b"h" * 18
BARE = "rocksdb, bare"


@dataclass(frozen=True, kw_only=True)
class Part:
    pairs: Rows
    """Keys and values."""
    rows: list[tuple[bytes, bytes, Any]]
    """The same with a TTL each."""


@dataclass(frozen=True, kw_only=True)
class Turns:
    """What one of them does when it is its turn; `scan` goes on where it was."""

    put: Callable[[Part], object]
    many: Callable[[Part], object]
    get: Callable[[bytes], object]
    scan: Callable[[], Iterator[Any]]
    settle: Callable[[], object]


def bare(path: Path, head: bytes) -> Turns:
    from rocksdict import Options, Rdict, WriteBatch

    database = Rdict(str(path), Options(raw_mode=True))

    def put(part: Part) -> None:
        write = database.put
        for key, value in part.pairs:
            write(key, head + value if head else value)

    def many(part: Part) -> None:
        batch = WriteBatch(raw_mode=True)
        write = batch.put
        if head:
            for key, value in part.pairs:
                write(key, head + value)
        else:
            for key, value in part.pairs:
                write(key, value)
        database.write(batch)

    return Turns(put=put, many=many, get=database.get, scan=database.items, settle=database.flush)


def with_lapse(store: lapse.kv.Store, *, each: bool) -> Turns:
    def put(part: Part) -> None:
        write = store.put
        if each:
            for key, value, ttl in part.rows:
                write(key, value, ttl)
        else:
            for key, value in part.pairs:
                write(key, value)

    def many(part: Part) -> None:
        store.put_many(part.rows if each else part.pairs)

    return Turns(put=put, many=many, get=store.get, scan=store.scan, settle=flush_tables(store))


def by_turns(rows: Rows, *, rounds: int) -> dict[str, dict[str, float]]:
    """Processor time of the bare engine against that of each, by operation: the median of the rounds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for operation, spent in _round(rows, random.Random(number)).items():
            for name, seconds in spent.items():
                found[name][operation].append(spent[BARE] / seconds)
    return {
        name: {operation: round(statistics.median(ratios), 3) for operation, ratios in row.items()}
        for name, row in found.items()
        if name != BARE
    }


def _round(rows: Rows, order: random.Random) -> dict[str, dict[str, float]]:
    parts = [
        Part(pairs=pairs, rows=[(key, value, TTLS[index % len(TTLS)]) for index, (key, value) in enumerate(pairs)])
        for pairs in batches(rows)
    ]
    with folder() as path, ExitStack() as opened:
        default = opened.enter_context(lapse.kv.open(f"rocksdb:{path / 'default'}", default_ttl="30 days"))
        each = opened.enter_context(lapse.kv.open(f"rocksdb:{path / 'each'}"))
        all_turns = {
            BARE: bare(path / "bare", b""),
            "rocksdb, header by hand": bare(path / "header", HEAD),
            "rocksdb, Lapse": with_lapse(default, each=False),
            "rocksdb, Lapse, TTL per row": with_lapse(each, each=True),
        }

        def taken(works: Mapping[str, Callable[[Part], object]]) -> dict[str, float]:
            spent = dict.fromkeys(works, 0.0)
            for part in parts:
                for name in order.sample(list(works), len(works)):
                    began = time.process_time()
                    works[name](part)
                    spent[name] += time.process_time() - began
            return spent

        result = {"batch put": taken({name: turns.many for name, turns in all_turns.items()})}
        for turns in all_turns.values():
            turns.settle()
        result["get"] = taken({name: _gets(turns, 0) for name, turns in all_turns.items()})
        result["miss"] = taken({name: _gets(turns, 1) for name, turns in all_turns.items()})
        result["scan"] = taken({name: _scans(turns) for name, turns in all_turns.items()})
        result["put"] = taken({name: turns.put for name, turns in all_turns.items()})
        return result


def _gets(turns: Turns, what: int) -> Callable[[Part], None]:
    """Of the rows' keys, or of the beginnings of their values, which are not there."""

    def work(part: Part) -> None:
        get = turns.get
        for row in part.pairs:
            get(row[what][:16])

    return work


def _scans(turns: Turns) -> Callable[[Part], None]:
    rows = iter(turns.scan())

    def work(part: Part) -> None:
        for _ in islice(rows, BATCH_ROWS):
            pass

    return work
