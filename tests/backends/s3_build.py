"""Builds versitygw, a server of S3's API on a folder, from its sources in Go's module proxy, into the user's cache.

`python -m tests.backends.s3_build` does it. It takes two minutes of one processor.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.backends.packages import cache_folder

VERSION = "v1.8.0"
PACKAGE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"


def binary() -> Path:
    return cache_folder() / f"versitygw-{VERSION}" / "versitygw"


def why_not() -> str | None:
    return None if binary().exists() else f"{binary()} is not there: make fetched builds it, where there is Go"


def build() -> None:
    """Complete, or not at all: it is built beside its place and then moved there."""
    if why_not() is None:
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="building-", dir=cache_folder()))
    try:
        environment = os.environ | {"GOBIN": str(work), "CGO_ENABLED": "0", "GOFLAGS": "-trimpath -ldflags=-s"}
        subprocess.run(["nice", "-n", "10", "go", "install", PACKAGE], cwd=work, env=environment, check=True)
        binary().parent.mkdir(exist_ok=True)
        (work / "versitygw").rename(binary())
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    build()
