"""The files in deploy/ fit the program they start."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main

from lapse import __version__
from lapse.cli import app
from lapse.console.guard import OPEN_PATHS
from lapse.console.options import TOKEN_VARIABLE
from tests.backends.packages import cache_folder
from tests.tools import required

DEPLOY = Path(__file__).parents[2] / "deploy"


def _text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def test_every_file_is_in_the_readme() -> None:
    listed = set(re.findall(r"^\| \[([^\]]+)\]", _text("README.md"), re.MULTILINE))
    assert listed == {path.name for path in DEPLOY.iterdir()} - {"README.md"}


def test_the_options_they_use_exist() -> None:
    group: Any = typer.main.get_command(app)
    known = {flag for parameter in group.commands["worker"].params for flag in parameter.opts}
    for name in ("lapse-worker.service", "Dockerfile", "kubernetes.yaml"):
        line = next(line for line in _text(name).splitlines() if "--listen" in line)
        assert set(re.findall(r"--[a-z-]+", line)) <= known
        assert TOKEN_VARIABLE in _text(name)
        assert "LAPSE_URL" in _text(name)


def test_probes_ask_what_is_open() -> None:
    assert set(re.findall(r"path: (/\w+)", _text("kubernetes.yaml"))) == OPEN_PATHS
    assert "/healthz" in _text("Dockerfile")


def test_the_unit_is_a_unit(tmp_path: Path) -> None:
    unit = _text("lapse-worker.service").replace("/opt/lapse/bin/lapse", "/bin/true")
    (tmp_path / "lapse-worker.service").write_text(unit)
    done = subprocess.run(
        [required("systemd-analyze"), "verify", "--man=no", str(tmp_path / "lapse-worker.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "lapse-worker" not in done.stderr, done.stderr


HELM = DEPLOY / "helm"
NEEDED = ("--set", "image.repository=registry.example/lapse", "--set", "existingSecret=lapse")


def _helm(*words: str) -> subprocess.CompletedProcess[str]:
    """No distribution that the tests run on has Helm: `make helm` builds it into the user's cache."""
    program = shutil.which("helm") or shutil.which("helm", path=cache_folder())
    if program is None:
        pytest.skip("helm is not installed: make helm")
    # Helm that was built from its source takes an old version of Kubernetes for granted.
    oldest = re.search(r'kubeVersion: ">=([\d.]+)-0"', _text("helm/Chart.yaml"))
    assert oldest is not None
    return subprocess.run([program, *words, "--kube-version", oldest[1]], capture_output=True, text=True, check=False)


def test_helm_finds_no_fault_with_the_chart() -> None:
    done = _helm("lint", "--strict", str(HELM), *NEEDED)
    assert done.returncode == 0, done.stdout + done.stderr


def test_helm_renders_what_was_asked_for() -> None:
    done = _helm("template", "ttl", str(HELM), *NEEDED, "--set", "serviceMonitor.enabled=true")
    assert done.returncode == 0, done.stderr
    kinds = re.findall(r"^kind: (\w+)$", done.stdout, re.MULTILINE)
    assert sorted(kinds) == ["Deployment", "PodDisruptionBudget", "Service", "ServiceMonitor"]
    assert set(re.findall(r"path: (/\w+)", done.stdout)) == {*OPEN_PATHS, "/metrics"}
    without = _helm("template", "ttl", str(HELM), "--set", "image.repository=x")
    assert "name a Secret with LAPSE_URL" in without.stderr


@pytest.mark.parametrize(
    ("setting", "rendered"),
    [
        ("antiAffinity=required", "requiredDuringSchedulingIgnoredDuringExecution"),
        (f"image.digest=sha256:{64 * '0'}", f'image: "registry.example/lapse@sha256:{64 * "0"}"'),
        ("allowActions=true", "- --allow-actions"),
        ("service.port=9000", "port: 9000, targetPort: http"),
        ("extraArgs={--log-level,debug}", '- "--log-level"\n            - "debug"'),
    ],
)
def test_helm_renders_each_setting(setting: str, rendered: str) -> None:
    done = _helm("template", "ttl", str(HELM), *NEEDED, "--set", setting)
    assert rendered in done.stdout, done.stderr


@pytest.mark.parametrize("mistake", ["antiAfinity=none", "antiAffinity=never", "replicas=0", "image.repository="])
def test_helm_refuses_mistakes(mistake: str) -> None:
    done = _helm("template", "ttl", str(HELM), *NEEDED, "--set", mistake)
    assert done.returncode != 0
    assert mistake.partition("=")[0].split(".")[-1] in done.stderr


def test_the_chart_fits_its_values_and_the_program() -> None:
    """What can be seen without Helm."""
    templates = "".join(path.read_text(encoding="utf-8") for path in sorted((HELM / "templates").iterdir()))
    values, schema = _text("helm/values.yaml"), json.loads(_text("helm/values.schema.json"))
    known = set(re.findall(r"^(\w+):", values, re.MULTILINE))
    assert known == set(schema["properties"]) - {"global"}
    assert set(re.findall(r"\.Values\.(\w+)", templates)) == known
    for name in ("image", "service", "serviceMonitor", "disruptionBudget"):
        used = set(re.findall(rf"\.Values\.{name}\.(\w+)", templates))
        assert used <= set(schema["properties"][name]["properties"])
    assert templates.count("{{") == templates.count("}}")
    begun = len(re.findall(r"\{\{-? *(?:if|with|range|define) ", templates))
    assert begun == len(re.findall(r"\{\{-? *end *-?\}\}", templates))
    chart = _text("helm/Chart.yaml")
    assert f'appVersion: "{__version__}"' in chart
    group: Any = typer.main.get_command(app)
    flags = {flag for parameter in group.commands["worker"].params for flag in parameter.opts}
    assert set(re.findall(r"^ +- (--[a-z-]+)$", templates, re.MULTILINE)) <= flags
    assert set(re.findall(r"path: (/\w+)", templates)) == {*OPEN_PATHS, "/metrics"}
    assert TOKEN_VARIABLE in templates


def test_the_image_is_made_of_what_is_pinned_and_let_in() -> None:
    text = _text("Dockerfile")
    assert re.search(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    # Compiled files have the time in them, and a pip of its own is compiled.
    assert "--no-compile" in text
    assert "venv --without-pip" in text
    ignored = (DEPLOY.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert next(line for line in ignored if not line.startswith("#")) == "*"
    copied = {word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for word in line.split()}
    assert copied == {line.removeprefix("!") for line in ignored if line.startswith("!")}
