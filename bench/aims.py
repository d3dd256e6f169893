"""What Lapse wants to reach, beside what was measured last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.record import BASELINE, LOOP, NAMES, by_shape
from bench.tidb import NATIVE, OWN

Records = Mapping[str, Mapping[str, Any]]
"""Engine to its file of figures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """`measured` is None where that part has never been measured."""

    words: str
    limit: float
    unit: str
    at_most: bool
    measured: Callable[[Records], float | None]

    def row(self, records: Records) -> list[str] | None:
        figure = self.measured(records)
        if figure is None:
            return None
        reached = figure <= self.limit if self.at_most else figure >= self.limit
        bound = f"at {'most' if self.at_most else 'least'} {self._text(self.limit)}"
        return [self.words, bound, self._text(figure), "yes" if reached else "no"]

    def _text(self, figure: float) -> str:
        return f"{figure:.2f}x" if self.unit == "x" else f"{figure:.0f} {self.unit}"


def _rows(records: Records, engine: str, part: str, **shape: object) -> dict[str, Any]:
    """Contender to its row, of the first shape that fits."""
    found = records.get(engine, {}).get(part, {"found": []})["found"]
    groups = by_shape([row for row in found if shape.items() <= row["shape"].items()])
    return next(iter(groups.values()), {})


def _speed(engine: str, key: str, than: str) -> Callable[[Records], float | None]:
    def measured(records: Records) -> float | None:
        rows = _rows(records, engine, "base", key=key)
        return rows[than]["seconds"] / rows["Lapse"]["seconds"] if rows.keys() >= {than, "Lapse"} else None

    return measured


def _faster(engine: str, part: str, ours: str, than: str, **shape: object) -> Callable[[Records], float | None]:
    def measured(records: Records) -> float | None:
        rows = _rows(records, engine, part, **shape)
        return rows[than]["seconds"] / rows[ours]["seconds"] if rows.keys() >= {than, ours} else None

    return measured


def _hold(engine: str, key: str) -> Callable[[Records], float | None]:
    def measured(records: Records) -> float | None:
        rows = _rows(records, engine, "base", key=key)
        return rows["Lapse"]["hold_p95_ms"] if rows else None

    return measured


def _idle(engine: str) -> Callable[[Records], float | None]:
    def measured(records: Records) -> float | None:
        rows = _rows(records, engine, "idle", expiry_index=False)
        return rows["Lapse"]["seconds"] / rows["SELECT count(*)"]["seconds"] if rows else None

    return measured


def _felt(engine: str) -> Callable[[Records], float | None]:
    def measured(records: Records) -> float | None:
        part = records.get(engine, {}).get("foreground")
        if part is None:
            return None
        p99 = {row["contender"]: row["p99_ms"] for row in part["found"]["contenders"]}
        return float(p99["Lapse gentle"] / p99["no job"])

    return measured


def _proof(engine: str, variant: str) -> Callable[[Records], float | None]:
    def measured(records: Records) -> float | None:
        part = records.get(engine, {}).get("proof")
        if part is None:
            return None
        rows = [row for row in part["found"] if row["variant"] == variant and row["expired_percent"] == BASE_PERCENT]
        return float(max(row["processor"] for row in rows))

    return measured


def _at_least(words: str, limit: float, measured: Callable[[Records], float | None]) -> Aim:
    return Aim(words=words, limit=limit, unit="x", at_most=False, measured=measured)


def _at_most(words: str, limit: float, measured: Callable[[Records], float | None], unit: str = "x") -> Aim:
    return Aim(words=words, limit=limit, unit=unit, at_most=True, measured=measured)


AIMED_PERCENT = 10.0
"""Of the rows, how many have expired where aims for archives hold: as in the other tables."""


def _archiving(engine: str, contender: str, than: str = "Lapse") -> Callable[[Records], float | None]:
    def measured(records: Records) -> float | None:
        rows = _rows(records, engine, "archive", expired_percent=AIMED_PERCENT)
        return rows[than]["seconds"] / rows[contender]["seconds"] if rows.keys() >= {than, contender} else None

    return measured


BASE_PERCENT = 10.0
ARCHIVER = "pt-archiver bulk"
TO_TABLE, TO_FILES = "Lapse to a table", "Lapse to Parquet files"
AIMS = (
    _at_least("PostgreSQL, bigint key: speed of one DELETE", 1.15, _speed("postgres", "bigint", BASELINE)),
    _at_least("PostgreSQL, uuid key: speed of one DELETE", 1.15, _speed("postgres", "uuid", BASELINE)),
    _at_most("PostgreSQL: a batch, p95", 100, _hold("postgres", "bigint"), "ms"),
    _at_least("PostgreSQL, bigint key: speed of the references' loop", 3.0, _speed("postgres", "bigint", LOOP)),
    _at_least("PostgreSQL, uuid key: speed of the references' loop", 6.0, _speed("postgres", "uuid", LOOP)),
    _at_least("MariaDB, bigint key: speed of one DELETE", 1.1, _speed("mariadb", "bigint", BASELINE)),
    _at_least("MariaDB, uuid key: speed of one DELETE", 1.1, _speed("mariadb", "uuid", BASELINE)),
    _at_least("MariaDB, bigint key: speed of the references' loop", 2.0, _speed("mariadb", "bigint", LOOP)),
    _at_least("MariaDB, uuid key: speed of the references' loop", 2.0, _speed("mariadb", "uuid", LOOP)),
    _at_least("MariaDB: speed of pt-archiver with bulk deletes", 2.0, _speed("mariadb", "bigint", ARCHIVER)),
    _at_least(
        "MySQL, the client's processor busy: speed of the references' loop",
        1.3,
        _faster("mysql", "busy", "Lapse", LOOP),
    ),
    _at_least("TiDB, Lapse's own job: speed of TiDB's own TTL", 2.0, _faster("tidb", "native", OWN, NATIVE)),
    _at_least("SQLite: speed of one DELETE", 0.9, _speed("sqlite", "bigint", BASELINE)),
    _at_most("SQLite: the write lock is held, p95", 15, _hold("sqlite", "bigint"), "ms"),
    *(
        _at_least(
            f"{NAMES[engine]}, 10,000,000 rows, the oldest hundredth expired, {words}: speed of one DELETE",
            0.5,
            _faster(engine, "full", "Lapse", BASELINE, **{index: True}),
        )
        for engine, index, words in (
            ("postgres", "expiry_index", "index"),
            ("postgres", "brin", "BRIN index"),
            ("mariadb", "expiry_index", "index"),
        )
    ),
    *(
        _at_most(f"{name}: a run that finds nothing, time of a `count(*)`", 1.2, _idle(engine))
        for engine, name in NAMES.items()
    ),
    *(
        _at_most(f"{name}: a run with {words}, processor time of one without", limit, _proof(engine, variant))
        for engine, name in NAMES.items()
        for variant, words, limit in (("ten holds", "ten holds", 1.1), ("keys", "`ttl_ledger_keys`", 1.15))
    ),
    *(
        _at_most(f"{NAMES[engine]}: an application's p99 beside `gentle`, of none", 1.4, _felt(engine))
        for engine in ("postgres", "mariadb")
    ),
    *(
        _at_least(
            f"{name}, 10 % expired: rows that move to {what}, speed of deleting alone",
            least,
            _archiving(engine, contender),
        )
        for engine, name in NAMES.items()
        for what, least, contender in (("an archive table", 0.5, TO_TABLE), ("Parquet files", 0.35, TO_FILES))
    ),
    *(
        _at_least(f"MariaDB, 10 % expired: speed of {rival}", 2.0, _archiving("mariadb", ours, rival))
        for ours, rival in ((TO_TABLE, "pt-archiver --dest"), (TO_FILES, "pt-archiver --file"))
    ),
)
