"""Twenty tables that are broken in ten ways, among healthy ones."""

from __future__ import annotations

from lapse.model.blocked import BlockCode
from tests.broken import Breakage, assert_the_others_are_clean, assert_the_others_are_on_time, make_tables
from tests.conformance.harness import Harness

COLUMNS = "(id INTEGER PRIMARY KEY, ts TIMESTAMP, body VARCHAR(20))"
BREAKAGES = [
    Breakage(name="dropped", sql=("DROP TABLE {t}",), codes={BlockCode.TABLE_GONE}, leaves_table=False),
    Breakage(
        name="column renamed", sql=("ALTER TABLE {t} RENAME COLUMN ts TO born",), codes={BlockCode.COLUMN_CHANGED}
    ),
    Breakage(
        name="replaced",
        sql=(
            "DROP TABLE {t}",
            f"CREATE TABLE {{t}} {COLUMNS}",
            "INSERT INTO {t} VALUES (1, '2001-01-01', NULL), (2, '2001-01-01', NULL)",
        ),
        codes={BlockCode.TABLE_REPLACED},
    ),
    Breakage(
        name="rebuilt",
        sql=(
            f"CREATE TABLE {{t}}_new {COLUMNS}",
            "INSERT INTO {t}_new SELECT * FROM {t}",
            "DROP TABLE {t}",
            "ALTER TABLE {t}_new RENAME TO {t}",
        ),
        codes={BlockCode.TABLE_REPLACED},
    ),
    Breakage(
        name="a view in its place",
        sql=("DROP TABLE {t}", "CREATE VIEW {t} AS SELECT 2 AS id, '2001-01-01' AS ts"),
        codes={BlockCode.TABLE_GONE, BlockCode.TABLE_REPLACED, BlockCode.UNSUPPORTED},
    ),
    Breakage(
        name="trigger fails",
        sql=("CREATE TRIGGER {t}_bad BEFORE DELETE ON {t} BEGIN SELECT no_such_function(1); END",),
        codes={BlockCode.ERROR},
    ),
    Breakage(
        name="trigger objects",
        sql=("CREATE TRIGGER {t}_no BEFORE DELETE ON {t} BEGIN SELECT RAISE(ABORT, 'no'); END",),
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
    Breakage(
        name="renamed", sql=("ALTER TABLE {t} RENAME TO {t}_away",), codes={BlockCode.TABLE_GONE}, leaves_table=False
    ),
]


def test_the_others_are_on_time(h: Harness) -> None:
    broken = make_tables(h, BREAKAGES)
    assert_the_others_are_on_time(h, broken)
    assert_the_others_are_clean(h, broken)
