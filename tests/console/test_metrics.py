"""What Prometheus gets: from the worker's own counters and from the catalog."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lapse import metrics
from lapse.app import Lapse
from lapse.console import ConsoleOptions
from lapse.console.application import build
from lapse.console.server import Server, bind
from lapse.metrics import DEFINITIONS, MetricKind
from lapse.runner.metering import Meter
from tests.console.conftest import TOKEN, Visit
from tests.tools import required

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
NAME = re.compile(r"\blapse_ttl_[a-z_]+\b")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def _samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _series(definition: metrics.Definition) -> set[str]:
    if definition.kind is MetricKind.HISTOGRAM:
        return {f"{definition.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")}
    return {definition.name}


KNOWN = {name for definition in DEFINITIONS for name in _series(definition)}


def test_a_run_is_counted(database: Lapse, visit: Visit) -> None:
    database.execute("ALTER TABLE events SET (ttl_delete_rate_limit = 60000, ttl_delete_batch_size = 1000)")
    sink = database.metrics()
    database.run("events", listener=Meter(sink))
    from prometheus_client import generate_latest

    found = _samples(generate_latest(sink.registry).decode())
    table = ("table", "events")
    assert found["lapse_ttl_rows_deleted_total", (table,)] == 10_000
    assert found["lapse_ttl_processed_expired_rows_total", (("result", "ok"), ("sql_type", "delete"), table)] == 10_000
    assert found["lapse_ttl_queries_total", (("result", "ok"), ("sql_type", "delete"), table)] >= 10
    assert found["lapse_ttl_query_duration_seconds_count", (("sql_type", "delete"), table)] >= 10
    assert found["lapse_ttl_jobs_ended_total", (("status", "finished"),)] == 1
    assert found["lapse_ttl_task_duration_seconds_count", (table,)] == 1
    phases = {
        labels[0][1]: value for (name, labels), value in found.items() if name.endswith("phase_time_seconds_total")
    }
    assert phases.keys() >= {"scan", "delete", "other"}
    assert sum(phases.values()) == pytest.approx(found["lapse_ttl_task_duration_seconds_sum", (table,)], rel=0.1)


def test_the_catalog_is_read_at_every_scrape(database: Lapse, visit: Visit) -> None:
    found = _samples(visit(database).get("/metrics").text)
    assert found["lapse_ttl_database_up", ()] == 1
    assert found["lapse_ttl_tables", (("health", "late"),)] == 1
    assert found["lapse_ttl_tables", (("health", "blocked"),)] == 2
    assert found["lapse_ttl_failing_tables", ()] == 1
    assert found["lapse_ttl_held_rows", (("table", "default"),)] == 12
    assert found["lapse_ttl_workers", (("state", "stale"),)] >= 1
    assert abs(found["lapse_ttl_clock_offset_seconds", ()]) < 2
    assert found["lapse_ttl_promise_used_ratio", (("table", "default"),)] > 2
    assert found["lapse_ttl_promise_used_ratio", (("table", "events"),)] < 1
    assert found["lapse_ttl_watermark_delay_tables", (("delay", "168h"),)] == 1
    assert {name for name, _ in found if not name.endswith("_created")} <= KNOWN


def test_labels_are_bounded(database: Lapse, visit: Visit) -> None:
    for number in range(20):
        database.execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, at TEXT) TTL = at + INTERVAL 1 DAY")
    found = _samples(visit(database).get("/metrics").text)
    assert {dict(labels)["table"] for _, labels in found if "table" in dict(labels)} == {"default", "events"}


def test_hostile_labels_are_escaped(hostile: Lapse, visit: Visit) -> None:
    name = hostile.policies()[0].table.name
    quoted = '"' + name.replace('"', '""') + '"'
    hostile.execute(f"ALTER TABLE {quoted} SET (ttl_label_metrics = 'on')")
    found = _samples(visit(hostile).get("/metrics").text)
    assert found["lapse_ttl_held_rows", (("table", name),)] == 0


def _expressions(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in ([each] if key == "expr" else _expressions(each))]
    return [text for each in value for text in _expressions(each)] if isinstance(value, list) else []


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    expressions = _expressions(dashboard)
    used = {name for text in expressions for name in NAME.findall(text)}
    assert used <= KNOWN
    assert len(expressions) >= 12
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_the_alerts_ask_for_metrics_that_exist() -> None:
    text = (DEPLOY / "prometheus-alerts.yaml").read_text(encoding="utf-8")
    assert set(NAME.findall(text)) <= KNOWN
    for alert in ("Late", "Failing", "Stuck", "Undeletable", "Clock", "StoreNotPurged"):
        assert f"alert: Lapse{alert}" in text


def test_promtool_accepts_the_alerts_and_they_fire(tmp_path: Path) -> None:
    promtool = required("promtool")
    for arguments in (["check", "rules", "prometheus-alerts.yaml"], ["test", "rules", "prometheus-alerts.test.yaml"]):
        done = subprocess.run([promtool, *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_exposition(database: Lapse, visit: Visit) -> None:
    text = visit(database).get("/metrics").text
    done = subprocess.run(
        [required("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for definition in DEFINITIONS:
        assert f"`{definition.name}`" in text
    for name in NAME.findall(text):
        assert name in KNOWN | {definition.name for definition in DEFINITIONS}, name


def test_a_real_prometheus_scrapes(database: Lapse, tmp_path: Path) -> None:
    prometheus = required("prometheus")
    bound, options = bind(ConsoleOptions(host="0.0.0.0", token=TOKEN))
    (tmp_path / "token").write_text(TOKEN)
    port = _free_port()
    (tmp_path / "prometheus.yml").write_text(
        "scrape_configs:\n"
        "  - job_name: lapse\n    scrape_interval: 1s\n    scrape_timeout: 1s\n"
        f"    authorization: {{credentials_file: '{tmp_path / 'token'}'}}\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{options.port}']}}]\n"
        f"rule_files: ['{DEPLOY / 'prometheus-alerts.yaml'}']\n"
    )
    command = [
        prometheus,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with Server(build(database, database.metrics(), options), bound):
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert _ask(port, 'up{job="lapse"}') == 1
            assert _ask(port, 'lapse_ttl_tables{health="late"}') == 1
            assert _ask(port, 'lapse_ttl_lateness_seconds{table="events"}') > 0
        finally:
            running.terminate()
            running.wait(20)


def _ask(port: int, query: str, seconds: float = 30.0) -> float:
    """The value of a query, as soon as there is one that is not 0."""
    address = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=5) as response:
                found = json.load(response)["data"]["result"]
            if found and float(found[0]["value"][1]):
                return float(found[0]["value"][1])
        except OSError:
            pass
        time.sleep(0.3)
    raise AssertionError(f"Prometheus has no answer to {query}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
