"""Global settings, as stored."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from lapse.catalog.schema import setting
from lapse.model import settings as model
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
    connection.execute(delete(setting).where(setting.c.name == name))
    connection.execute(insert(setting).values(name=name, value=value, changed_at=now))
    return name, value


def reset_setting(connection: Connection, name: str) -> str:
    name = model.find(name).name
    connection.execute(delete(setting).where(setting.c.name == name))
    return name


def hold_clock(connection: Connection, reason: str, now: datetime) -> None:
    """Stop all jobs until `trust_clock`."""
    trust_clock(connection)
    connection.execute(insert(setting).values(name=model.CLOCK_HOLD, value=reason, changed_at=now))


def trust_clock(connection: Connection) -> bool:
    """True if the clock was not trusted before."""
    return connection.execute(delete(setting).where(setting.c.name == model.CLOCK_HOLD)).rowcount > 0
