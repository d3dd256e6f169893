"""The OpenAPI document of the JSON API, made from its operations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from lapse._version import __version__
from lapse.app import Health
from lapse.catalog.jobs import COUNT_NAMES
from lapse.console.api import DEFAULT_LIMIT, MAX_LIMIT, PREFIX, Operation
from lapse.model.job import JobStatus, TaskStatus

Schema = dict[str, Any]

INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
OBJECT: Schema = {"type": "object"}


def maybe(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}


def many(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def one_of(*words: str) -> Schema:
    return {"type": "string", "enum": [str(word) for word in words]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TABLE = {"table": TEXT, "schema": maybe(TEXT), "partition": maybe(TEXT)}
_JOB: dict[str, Schema] = {
    "job_id": maybe(INTEGER),
    "native_id": maybe(TEXT),
    **_TABLE,
    "status": one_of(*JobStatus),
    "reason": maybe(TEXT),
    "cutoff": TIME,
    "created_at": TIME,
    "started_at": maybe(TIME),
    "finished_at": maybe(TIME),
    "path": TEXT,
    "path_index": maybe(TEXT),
    "path_evidence": TEXT,
    "tasks_total": INTEGER,
    "tasks_finished": INTEGER,
    **dict.fromkeys(COUNT_NAMES, INTEGER),
    "deleted": maybe(INTEGER),
    "estimated": FLAG,
    "policy_version": INTEGER,
    "summary": maybe(OBJECT),
}

SCHEMAS: dict[str, dict[str, Schema]] = {
    "Overview": {
        "now": TIME,
        **dict.fromkeys(("policies", *map(str, Health), "native_tables", "active_jobs"), INTEGER),
        **dict.fromkeys(("workers", "workers_alive", "deleted_today"), INTEGER),
    },
    "Policy": {
        "id": INTEGER,
        **_TABLE,
        "health": one_of(*Health),
        "blocked": maybe(TEXT),
        "why": maybe(TEXT),
        "lateness_seconds": NUMBER,
        "promise_seconds": NUMBER,
        "expires": TEXT,
        "policy": OBJECT,
        "policy_version": INTEGER,
        "estimated_rows": maybe(INTEGER),
        "bytes": maybe(INTEGER),
        "counted_rows": maybe(INTEGER),
        "expired_rows": maybe(INTEGER),
        "counted_at": maybe(TIME),
        "held_rows": INTEGER,
        "locked_rows": INTEGER,
        "next_run_at": maybe(TIME),
        "active_jobs": many(INTEGER),
        "last_job": {"anyOf": [ref("Job"), {"type": "null"}]},
    },
    "Job": _JOB,
    "LiveJob": _JOB
    | {
        "fraction": maybe(NUMBER),
        "rows_per_second": NUMBER,
        "eta_seconds": maybe(NUMBER),
        "pause_reasons": many(TEXT),
        "tasks": many(ref("Task")),
    },
    "Task": {
        "id": INTEGER,
        "ordinal": INTEGER,
        "status": one_of(*TaskStatus),
        "owner": maybe(TEXT),
        "heartbeat_at": maybe(TIME),
        "selected": INTEGER,
        "deleted": INTEGER,
        "held": INTEGER,
        "worked_seconds": NUMBER,
        "waited_seconds": NUMBER,
        "pause_reason": maybe(TEXT),
        "last_error": maybe(TEXT),
    },
    "Worker": {"id": TEXT, "address": TEXT, "version": TEXT, "started_at": TIME, "heartbeat_at": TIME, "alive": FLAG},
    "Gauge": {
        "name": TEXT,
        "value": maybe(NUMBER),
        "soft": NUMBER,
        "unit": TEXT,
        "pressure": NUMBER,
        "stops": FLAG,
        "counts": FLAG,
        "table": maybe(TEXT),
        "note": maybe(TEXT),
    },
    "Setting": {"name": TEXT, "value": TEXT, "default": TEXT, "help": TEXT},
    "Declaration": {"dialect": TEXT, "sql": maybe(TEXT), "why_not": maybe(TEXT)},
    "Chart": {"unit": TEXT, "total": INTEGER, "days": many(ref("Day"))},
    "Day": {"day": TEXT, "rows": INTEGER},
    "Preview": {
        **_TABLE,
        "cutoff": TIME,
        "expires": TEXT,
        "candidate": FLAG,
        "grace_until": maybe(TIME),
        "note": maybe(TEXT),
        "rows": INTEGER,
        "expired": INTEGER,
        "would_delete": INTEGER,
        "held": INTEGER,
        "held_by": many(TEXT),
        "touched": many(OBJECT),
        "touched_exact": FLAG,
        "not_looked_into": many(TEXT),
        "expired_bytes": maybe(INTEGER),
        "exact": FLAG,
        "method": TEXT,
        "margin": INTEGER,
        "expected_seconds": maybe(NUMBER),
        "oldest": maybe(TIME),
        "newest": maybe(TIME),
        "path": TEXT,
        "path_index": maybe(TEXT),
        "path_evidence": TEXT,
        "archive": maybe(TEXT),
        "condition": TEXT,
        "sample": many(OBJECT),
        "foreign_keys": many(OBJECT),
        "advice": many(OBJECT),
        "forecast": ref("Forecast"),
    },
    "Forecast": {
        "at": TIME,
        "ttl": maybe(TEXT),
        "rows": INTEGER,
        "bytes": maybe(INTEGER),
        "expired": INTEGER,
        "exact": FLAG,
        "method": TEXT,
        "margin": INTEGER,
        "days": many(ref("ForecastDay")),
        "steady_state": maybe(OBJECT),
    },
    "ForecastDay": {"start": TIME, "rows": INTEGER, "bytes": maybe(INTEGER)},
    "Problem": {"error": TEXT, "hint": maybe(TEXT)},
}
"""Every property is always there; null stands for what is not known."""


PARAMETERS: dict[str, Schema] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    "ttl": TEXT | {"description": "What if the TTL were this long? Such as `14 days`."},
}


def document(operations: Iterable[Operation]) -> Schema:
    paths: dict[str, Schema] = {}
    for operation in operations:
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lapse",
            "version": __version__,
            "summary": "What row-level TTL is doing in one database.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {"basic": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {name: _object(properties) for name, properties in SCHEMAS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "Any user name; the token is the password.",
                },
            },
        },
    }


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _operation(operation: Operation) -> Schema:
    name, is_list = operation.answers.removesuffix("[]"), operation.answers.endswith("[]")
    path_parameters = [
        {"name": each, "in": "path", "required": True, "schema": INTEGER}
        for each in re.findall(r"\{(\w+)\}", operation.path)
    ]
    query_parameters = [{"name": each, "in": "query", "schema": PARAMETERS[each]} for each in operation.takes]
    failures = {"401": "The token is missing or wrong.", "503": "The database is unreachable."}
    if path_parameters:
        failures["404"] = "There is no such thing."
    if operation.is_action:
        failures |= {"403": "Actions are not allowed.", "409": "Not possible as things are; nothing was changed."}
    return {
        "operationId": operation.method.lower() + re.sub(r"\W+", "_", operation.path),
        "summary": operation.summary,
        "parameters": [*path_parameters, *query_parameters],
        "responses": {
            "200": {
                "description": "OK",
                "content": {"application/json": {"schema": many(ref(name)) if is_list else ref(name)}},
            },
            **{
                status: {"description": text, "content": {"application/json": {"schema": ref("Problem")}}}
                for status, text in sorted(failures.items())
            },
        },
    }
