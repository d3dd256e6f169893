"""Builds tidb-server from the sources in Go's module proxy, once, into the user's cache.

`python -m tests.backends.tidb_build` does it. It takes about ten minutes of one processor, at low priority, and needs a
Go that can fetch the toolchain which TiDB's sources were written for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.backends.packages import cache_folder

COMMIT = "ec8b81b98edc"
RELEASE = f"v8.5.0-alpha-{COMMIT}"
TOOLCHAIN = "go1.23.12"
SERVER = f"github.com/pingcap/tidb@v1.1.0-beta.0.20241125141335-{COMMIT}"
PARSER = f"github.com/pingcap/tidb/pkg/parser@v0.0.0-20241125141335-{COMMIT}"
"""A module of its own, which the other one expects in its folder."""


def binary() -> Path:
    return cache_folder() / f"tidb-{RELEASE}" / "tidb-server"


def why_not() -> str | None:
    return None if binary().exists() else f"{binary()} is not there: make tidb builds it"


def build() -> None:
    """Complete, or not at all: it is built beside its place and then moved there."""
    if why_not() is None:
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="building-", dir=cache_folder()))
    try:
        source = _sources(work)
        variable = f"github.com/pingcap/tidb/pkg/parser/mysql.TiDBReleaseVersion={RELEASE}"
        built = work / "tidb-server"
        _go(source, "build", "-p", "1", "-ldflags", f'-s -w -X "{variable}"', "-o", str(built), "./cmd/tidb-server")
        binary().parent.mkdir(exist_ok=True)
        built.rename(binary())
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sources(work: Path) -> Path:
    asking = work / "asking"
    asking.mkdir()
    (asking / "go.mod").write_text("module asking\n\ngo 1.23\n")
    source = work / "source"
    for module, place in ((SERVER, source), (PARSER, source / "pkg" / "parser")):
        _go(asking, "mod", "download", module)
        shutil.copytree(_module_folder(asking, module), place)
        # The module cache is read-only, and go writes into what it builds.
        for folder, _, files in os.walk(place):
            for path in (Path(folder), *(Path(folder, name) for name in files)):
                path.chmod(path.stat().st_mode | 0o200)
    _go(source, "mod", "download")
    return source


def _module_folder(asking: Path, module: str) -> Path:
    cache = subprocess.run(["go", "env", "GOMODCACHE"], cwd=asking, check=True, capture_output=True, text=True)
    return Path(cache.stdout.strip()) / module


def _go(folder: Path, *arguments: str) -> None:
    environment = os.environ | {
        "GOTOOLCHAIN": TOOLCHAIN,
        "GOMAXPROCS": "1",
        "GOFLAGS": "-buildvcs=false",
        "CGO_ENABLED": "1",
    }
    subprocess.run(["nice", "-n", "19", "go", *arguments], cwd=folder, env=environment, check=True)


if __name__ == "__main__":
    build()
