"""Programs that some tests need and not every machine has."""

from __future__ import annotations

import os
import shutil

import pytest


def required(program: str) -> str:
    """Its path. Skips the test where it is missing, except on CI, where that would hide a failure."""
    found = shutil.which(program)
    if found is not None:
        return found
    reason = f"{program} is not installed"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
