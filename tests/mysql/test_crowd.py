"""Twenty tables that are broken in ten ways, among healthy ones."""

from __future__ import annotations

from contextlib import closing

from lapse.model.blocked import BlockCode
from tests.backends.mariadb import MariadbServer
from tests.broken import (
    Breakage,
    assert_the_others_are_clean,
    assert_the_others_are_on_time,
    make_tables,
    names_of,
)
from tests.conformance.harness import Harness

BREAKAGES = [
    Breakage(name="dropped", sql=("DROP TABLE {t}",), codes={BlockCode.TABLE_GONE}, leaves_table=False),
    Breakage(name="column dropped", sql=("ALTER TABLE {t} DROP COLUMN ts",), codes={BlockCode.COLUMN_CHANGED}),
    Breakage(
        name="retyped",
        sql=("ALTER TABLE {t} MODIFY ts DATETIME(3)",),
        codes={BlockCode.COLUMN_CHANGED, BlockCode.TABLE_REPLACED},
    ),
    Breakage(
        name="replaced",
        sql=(
            "DROP TABLE {t}",
            "CREATE TABLE {t} (id INTEGER PRIMARY KEY, ts TIMESTAMP(3) NULL, body VARCHAR(20))",
            "INSERT INTO {t} VALUES (1, '2001-01-01', NULL), (2, '2001-01-01', NULL)",
        ),
        codes={BlockCode.TABLE_REPLACED},
    ),
    Breakage(name="locked", sql=(), codes={BlockCode.LOCKED}, leaves_table=False),
    Breakage(
        name="trigger fails",
        sql=("CREATE TRIGGER {t}_bad BEFORE DELETE ON {t} FOR EACH ROW INSERT INTO nowhere VALUES (1)",),
        codes={BlockCode.ERROR},
    ),
    Breakage(
        name="trigger objects",
        sql=("CREATE TRIGGER {t}_no BEFORE DELETE ON {t} FOR EACH ROW SIGNAL SQLSTATE '45000'",),
    ),
    Breakage(
        name="referenced",
        sql=("CREATE TABLE {t}_child (id INTEGER REFERENCES {t} (id))", "INSERT INTO {t}_child VALUES (1)"),
    ),
    Breakage(
        name="trigger gone",
        sql=("DROP TRIGGER lapse_{t}_update",),
        codes={BlockCode.PARTS_MISSING},
        ttl="WITH (ttl_expire_after = '1 day')",
    ),
    Breakage(name="renamed", sql=("RENAME TABLE {t} TO {t}_away",), codes={BlockCode.TABLE_GONE}, leaves_table=False),
]


def test_the_others_are_on_time(h: Harness, server: MariadbServer) -> None:
    broken = make_tables(h, BREAKAGES)
    with closing(server.connect(h.url.rpartition("/")[2])) as holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLES " + ", ".join(f"{name} WRITE" for name in names_of(broken, "locked")))
        assert_the_others_are_on_time(h, broken)
    assert_the_others_are_clean(h, broken)
