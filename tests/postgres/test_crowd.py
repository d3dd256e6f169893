"""Twenty tables that are broken in ten ways, among healthy ones."""

from __future__ import annotations

import psycopg

from lapse.model.blocked import BlockCode
from tests.broken import (
    Breakage,
    assert_the_others_are_clean,
    assert_the_others_are_on_time,
    make_tables,
    names_of,
)
from tests.conformance.harness import Harness

RAISING = (
    "CREATE FUNCTION {t}_no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$",
    "CREATE TRIGGER no BEFORE DELETE ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_no()",
)
BREAKAGES = [
    Breakage(name="dropped", sql=("DROP TABLE {t}",), codes={BlockCode.TABLE_GONE}, leaves_table=False),
    Breakage(name="column dropped", sql=("ALTER TABLE {t} DROP COLUMN ts",), codes={BlockCode.COLUMN_CHANGED}),
    Breakage(
        name="retyped",
        sql=("ALTER TABLE {t} ALTER ts TYPE timestamp USING ts AT TIME ZONE 'America/New_York'",),
        codes={BlockCode.COLUMN_CHANGED},
    ),
    Breakage(
        name="replaced",
        sql=(
            "DROP TABLE {t}",
            "CREATE TABLE {t} (id INTEGER PRIMARY KEY, ts TIMESTAMPTZ, body VARCHAR(20))",
            "INSERT INTO {t} VALUES (1, '2001-01-01'), (2, '2001-01-01')",
        ),
        codes={BlockCode.TABLE_REPLACED},
    ),
    Breakage(name="locked", sql=(), codes={BlockCode.LOCKED}, leaves_table=False),
    Breakage(
        name="bad data",
        sql=("INSERT INTO {t} VALUES (3, now(), 'no number')",),
        codes={BlockCode.BAD_DATA},
        ttl="WITH (ttl_expiration_expression = 'to_timestamp(CAST(body AS integer))')",
    ),
    Breakage(name="trigger raises", sql=RAISING),
    Breakage(
        name="referenced",
        sql=("CREATE TABLE {t}_child (id INTEGER REFERENCES {t})", "INSERT INTO {t}_child VALUES (1)"),
    ),
    Breakage(
        name="trigger gone",
        sql=("DROP TRIGGER lapse_ttl_update ON {t}",),
        codes={BlockCode.PARTS_MISSING},
        ttl="WITH (ttl_expire_after = '1 day')",
    ),
    Breakage(
        name="renamed", sql=("ALTER TABLE {t} RENAME TO {t}_away",), codes={BlockCode.TABLE_GONE}, leaves_table=False
    ),
]


def test_the_others_are_on_time(h: Harness) -> None:
    broken = make_tables(h, BREAKAGES)
    with psycopg.connect(h.url) as holder:
        holder.execute(f"LOCK TABLE {', '.join(names_of(broken, 'locked'))} IN ACCESS EXCLUSIVE MODE")
        assert_the_others_are_on_time(h, broken)
    assert_the_others_are_clean(h, broken)
