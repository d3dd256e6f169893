"""Global settings, as stored."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from lapse.catalog import ledger
from lapse.catalog.schema import setting
from lapse.model import settings as model
from lapse.model.ledger import EntryKind
from lapse.model.settings import Settings

_SETTINGS = select(setting)


def load_settings(connection: Connection) -> Settings:
    return Settings.from_texts(stored_texts(connection))


def stored_texts(connection: Connection) -> dict[str, str]:
    """Only settings that were set."""
    return {row.name: row.value for row in connection.execute(_SETTINGS)}


def save_setting(connection: Connection, name: str, text: str, now: datetime) -> tuple[str, str]:
    """Checks the value, then stores it; inside the caller's transaction. Returns the name and the text stored."""
    name, value = model.normalise(name, text)
    _replace(connection, name, value, now)
    return name, value


def reset_setting(connection: Connection, name: str, now: datetime) -> str:
    name = model.find(name).name
    _replace(connection, name, None, now)
    return name


def _replace(connection: Connection, name: str, value: str | None, now: datetime) -> None:
    """None is the default."""
    before = connection.execute(select(setting.c.value).where(setting.c.name == name)).scalar()
    connection.execute(delete(setting).where(setting.c.name == name))
    if value is not None:
        connection.execute(insert(setting).values(name=name, value=value, changed_at=now))
    was, became = {"setting": name, "value": before}, {"setting": name, "value": value}
    ledger.record(connection, EntryKind.SETTING, now=now, before=was, after=became)


def hold_clock(connection: Connection, reason: str, now: datetime) -> None:
    """Stop all jobs until `trust_clock`."""
    _end_clock_hold(connection)
    connection.execute(insert(setting).values(name=model.CLOCK_HOLD, value=reason, changed_at=now))
    ledger.record(connection, EntryKind.CLOCK, now=now, after={"trusted": False, "reason": reason})


def trust_clock(connection: Connection, now: datetime) -> bool:
    """True if the clock was not trusted before."""
    changed = _end_clock_hold(connection)
    if changed:
        ledger.record(connection, EntryKind.CLOCK, now=now, after={"trusted": True})
    return changed


def _end_clock_hold(connection: Connection) -> bool:
    return connection.execute(delete(setting).where(setting.c.name == model.CLOCK_HOLD)).rowcount > 0
