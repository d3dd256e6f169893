"""The JSON Schema of `lapse.toml`, made from the parameters, for editors that complete and check as one types."""

from __future__ import annotations

from typing import Any

from lapse.app.policyfile.reading import AFTER, COLUMN, DERIVED_PARAMETERS, EXCLUDE
from lapse.model import parameters
from lapse.model.interval import ALLOWED as DURATION

_ON_OFF = "'on' or 'off'"


def json_schema() -> dict[str, Any]:
    usable = [
        parameter
        for parameter in parameters.PARAMETERS.values()
        if parameter.field and parameter.name not in DERIVED_PARAMETERS
    ]
    known = {parameter.name: _parameter(parameter) for parameter in usable}
    expiry = ("ttl_expire_after", "ttl_expiration_expression")
    defaults = _table({name: value for name, value in known.items() if name not in expiry})
    table = _table(
        {
            COLUMN: {"type": "string", "description": "The column with the time to count from."},
            AFTER: {"type": "string", "description": f"How long after it a row expires: {DURATION}."},
            EXCLUDE: {"type": "string", "minLength": 1, "description": "Why this table has no TTL."},
            **known,
        }
    ) | {"dependentRequired": {COLUMN: [AFTER], AFTER: [COLUMN]}}
    tables = {"type": "object", "additionalProperties": {"$ref": "#/$defs/table"}}
    here = {
        "url": {"type": "string", "description": "The database; $VARIABLES in it are taken from the environment."},
        "defaults": {"$ref": "#/$defs/defaults"},
        "tables": tables,
    }
    query = "A statement that gives the names of other databases on the server of url, which are meant instead of it."
    hosts = "Other hosts that a second column of the query may name."
    listing = {
        "query": {"type": "string", "minLength": 1, "description": query},
        "hosts": {"type": "array", "items": {"type": "string", "minLength": 1}, "description": hosts},
    }
    database = _table(here | listing) | {"required": ["url"], "dependentRequired": {"hosts": ["query"]}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "lapse.toml",
        "description": "When the rows of each table expire.",
        **_table(
            {
                "defaults": {"$ref": "#/$defs/defaults"},
                "environments": {"type": "object", "additionalProperties": _table(here)},
                "databases": {"type": "object", "additionalProperties": database},
                "tables": tables,
            }
        ),
        "$defs": {"defaults": defaults, "table": table},
    }


def _table(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _parameter(parameter: parameters.Parameter) -> dict[str, Any]:
    default = f" Default: {parameter.default}." if parameter.default else ""
    described = {"description": f"{parameter.help} Allowed: {parameter.allowed}.{default}"}
    if parameter.allowed == _ON_OFF:
        return {"enum": [True, False, "on", "off"]} | described
    if parameter.default.isdigit():
        return {"type": "integer", "minimum": 0 if "0" in parameter.allowed.split() else 1} | described
    return {"type": "string"} | described
