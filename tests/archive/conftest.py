"""An S3-compatible server for the tests of archives."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.backends.s3 import S3Server
from tests.backends.s3_build import why_not


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    started = S3Server()
    yield started
    started.close()
