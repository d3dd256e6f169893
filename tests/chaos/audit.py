"""Triggers that write down every row that comes and goes, with the time it had expired, in the same transaction."""

from __future__ import annotations

from lapse.app import Lapse

_POSTGRES_FUNCTION = """
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO audit VALUES (TG_TABLE_NAME, NEW.id, 'I', NEW.expires_at, clock_timestamp());
  ELSE
    INSERT INTO audit VALUES (TG_TABLE_NAME, OLD.id, 'D', OLD.expires_at, clock_timestamp());
  END IF;
  RETURN NULL;
END $$"""


def install(db: Lapse, instant: str) -> None:
    db.execute(f"CREATE TABLE audit (tbl VARCHAR(64), id BIGINT, op CHAR(1), expires_at {instant}, at {instant})")
    if db.engine.dialect == "postgres":
        db.execute(_POSTGRES_FUNCTION)


def watch(db: Lapse, table: str) -> None:
    now = {"mysql": "UTC_TIMESTAMP(6)", "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')"}.get(db.engine.dialect)
    if db.engine.dialect == "postgres":
        db.execute(f"CREATE TRIGGER note AFTER INSERT OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION note()")
        return
    for action, row, letter in (("INSERT", "NEW", "I"), ("DELETE", "OLD", "D")):
        body = f"INSERT INTO audit VALUES ('{table}', {row}.id, '{letter}', {row}.expires_at, {now});"
        if db.engine.dialect == "sqlite":
            body = f"BEGIN {body} END"
        name = f"note_{table}_{letter.lower()}"
        db.execute(f"CREATE TRIGGER {name} AFTER {action} ON {table} FOR EACH ROW {body}")
