"""The JSON API: what it answers is what its OpenAPI document says."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

import lapse
from lapse.app import Lapse
from lapse.console import openapi
from lapse.console.api import PREFIX
from lapse.model.statement import JobAction
from tests.console.conftest import LOCAL, TOKEN, Visit, policy_id

TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int, "number": (int, float), "string": str, "boolean": bool, "object": dict, "array": list,
    "null": type(None),
}  # fmt: skip


def _violations(value: Any, schema: dict[str, Any], document: dict[str, Any], where: str = "") -> list[str]:
    """As much of JSON Schema as the document uses."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _violations(value, document["components"]["schemas"][name], document, where)
    if "anyOf" in schema:
        tries = [_violations(value, each, document, where) for each in schema["anyOf"]]
        return [] if any(not found for found in tries) else tries[0]
    allowed = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, TYPES[each]) for each in allowed):
        return [f"{where}: {value!r} is no {allowed}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r} is not in {schema['enum']}"]
    if isinstance(value, list):
        return [
            v for i, each in enumerate(value) for v in _violations(each, schema["items"], document, f"{where}[{i}]")
        ]
    if isinstance(value, dict) and "properties" in schema:
        if set(value) != set(schema["required"]):
            return [f"{where}: {set(value) ^ set(schema['required'])}"]
        return [v for k, s in schema["properties"].items() for v in _violations(value[k], s, document, f"{where}.{k}")]
    return []


def _leave_a_job(database: Lapse) -> int:
    worker = database.worker()
    worker.stop()
    [job] = worker.run(database.policy("events")).jobs
    database.control(job.id, JobAction.RESUME)
    return job.id


def test_every_answer_is_as_documented(database: Lapse, visit: Visit) -> None:
    client = visit(database, allow_actions=True)
    document = client.get(f"{PREFIX}/openapi.json").json()
    job_id, key = _leave_a_job(database), policy_id(database, "events")
    seen = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "post":
                continue
            response = client.get(path.format(policy_id=key, job_id=job_id))
            assert response.status_code == 200, (path, response.text)
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            assert _violations(response.json(), schema, document, path) == []
            # SQLite has no gauges.
            if isinstance(response.json(), list) and not path.endswith("/gauges"):
                assert response.json(), path
            seen += 1
    assert seen >= 12


def test_the_document_and_the_routes_agree(database: Lapse) -> None:
    from lapse.console.application import build
    from lapse.console.options import ConsoleOptions

    guard: Any = build(database, database.metrics(), ConsoleOptions())
    routes = {
        (method, re.sub(":int", "", route.path))
        for route in guard._app.routes
        if getattr(route, "methods", None) and route.path.startswith(PREFIX) and not route.path.endswith("openapi.json")
        for method in route.methods - {"HEAD"}
    }
    document = openapi.document(())
    assert document["info"]["version"] == lapse.__version__
    with_paths = TestClient(guard, base_url=LOCAL).get(f"{PREFIX}/openapi.json").json()
    documented = {(method.upper(), path) for path, methods in with_paths["paths"].items() for method in methods}
    assert documented == routes
    ids = [operation["operationId"] for methods in with_paths["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


def test_actions(database: Lapse, visit: Visit) -> None:
    client = visit(database, token=TOKEN, allow_actions=True)
    client.headers.update({"Authorization": f"Bearer {TOKEN}"})
    key, orders = policy_id(database, "events"), policy_id(database, "orders")
    assert client.get(f"{PREFIX}/tables/{orders}").json()["next_run_at"] is not None
    assert client.post(f"{PREFIX}/tables/{orders}/run").json()["next_run_at"] is None
    assert client.post(f"{PREFIX}/tables/{key}/pause").json()["health"] == "paused"
    refused = client.post(f"{PREFIX}/tables/{key}/run")
    assert (refused.status_code, refused.json()["hint"]) == (409, "resume it first")
    assert client.post(f"{PREFIX}/tables/{key}/resume").json()["health"] == "on_time"
    job_id = _leave_a_job(database)
    assert client.post(f"{PREFIX}/jobs/{job_id}/pause").json()["status"] == "paused"
    assert client.post(f"{PREFIX}/jobs/{job_id}/resume").json()["status"] == "waiting"
    assert client.post(f"{PREFIX}/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    assert client.post(f"{PREFIX}/jobs/{job_id}/cancel").status_code == 409
    assert client.post(f"{PREFIX}/tables/{key}/cancel").status_code == 200
    assert client.post(f"{PREFIX}/tables/999/pause").status_code == 404
    assert client.post(f"{PREFIX}/jobs/999/pause").json()["error"] == "there is no job 999"


def test_programs_on_this_machine_need_no_form(database: Lapse, visit: Visit) -> None:
    client = visit(database, allow_actions=True)
    key = policy_id(database, "events")
    assert client.post(f"{PREFIX}/tables/{key}/pause", json={}).status_code == 200
    assert client.post(f"{PREFIX}/tables/{key}/pause", headers={"Content-Type": "text/plain"}).status_code == 403


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "", "１"])
def test_limits(database: Lapse, visit: Visit, limit: str) -> None:
    client = visit(database)
    assert client.get(f"{PREFIX}/history", params={"limit": limit}).status_code == 400
    assert len(client.get(f"{PREFIX}/history", params={"limit": "3"}).json()) == 3
