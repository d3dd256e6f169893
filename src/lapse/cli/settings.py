"""`lapse settings`: what holds for all tables."""

from __future__ import annotations

from typing import Annotated

import typer

from lapse.cli.opening import Json, Url, open_database, shifted
from lapse.cli.output import Output
from lapse.errors import UsageError
from lapse.model.settings import SETTINGS, find


def settings(
    url: Url = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One setting.")] = None,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="Its new value.")] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Back to the default.")] = False,
    as_json: Json = False,
) -> None:
    """Show all settings, show one, or set one. Changes reach running workers at once.

    Example: `lapse settings sqlite:///app.db tidb_ttl_delete_rate_limit 5000`
    """
    url, name, value = shifted(url, name, value)
    if reset and (name is None or value is not None):
        raise UsageError("--reset takes one setting name and no value")
    if name is not None:
        name = find(name).name
    output = Output()
    with open_database(url) as database:
        if name is not None and reset:
            database.reset_setting(name)
        elif name is not None and value is not None:
            database.set_setting(name, value)
        current = database.settings()
    shown = [name] if name is not None else list(current)
    if as_json:
        output.json([_record(each, current[each]) for each in shown])
    elif name is not None:
        output.line(f"{name} = {current[name]}")
    else:
        rows = [(each, current[each], SETTINGS[each].default, SETTINGS[each].help) for each in shown]
        output.table(("setting", "value", "default", "meaning"), rows)


def _record(name: str, value: str) -> dict[str, str]:
    setting = SETTINGS[name]
    return {
        "name": name,
        "value": value,
        "default": setting.default,
        "allowed": setting.allowed,
        "help": setting.help,
    }
