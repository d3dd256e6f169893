"""SlateDB with the system's clock, where the engine itself purges: run under a clock that can be moved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)

pytestmark = pytest.mark.skipif(FAKETIME is None, reason="needs Debian's package faketime")


@pytest.mark.parametrize("scenario", ["idle_purge", "engine_drops", "frozen", "into_the_past"])
def test_scenario(tmp_path: Path, scenario: str) -> None:
    time_file = tmp_path / "time"
    time_file.write_text("+0")
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("native_process.py")),
            scenario,
            str(tmp_path / "store"),
        ],
        env=os.environ
        | {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(time_file), "FAKETIME_NO_CACHE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
