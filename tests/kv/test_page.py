"""The examples of `docs/kv.md`, run as they are printed; only the places where stores are differ."""

from __future__ import annotations

import re
import shlex
import threading
from pathlib import Path

import pytest

import lapse.kv
from lapse.engines import open_engine
from lapse.errors import UnsupportedUrl
from tests.kv.s3_server import BUCKET, Bucket
from tests.serving import serving

PAGE = (Path(__file__).parents[2] / "docs" / "kv.md").read_text(encoding="utf-8")
DIRECTORY, REMOTE = "rocksdb:/var/lib/app/sessions", "slatedb:s3://bucket/prefix"


def places(example: str, tmp_path: Path) -> str:
    found = example.replace(DIRECTORY, f"rocksdb:{tmp_path / 'sessions'}").replace(REMOTE, f"slatedb:s3://{BUCKET}/app")
    assert found != example
    return found.replace("127.0.0.1:8321", "127.0.0.1:0")


def test_the_python(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    stop = threading.Event()
    names = {"stop": stop}
    exec(places(blocks[0], tmp_path), names)  # the second waits until it is told to stop
    threading.Timer(0.5, stop.set).start()
    exec(places(blocks[1], tmp_path), names)
    with lapse.kv.open(f"rocksdb:{tmp_path / 'sessions'}") as store:
        assert store.get(b"config") == b"..."
        assert len(store.history()) == 2


def test_the_worker_leaves_an_application_alone_that_writes(bucket: Bucket, tmp_path: Path) -> None:
    (line,) = re.findall(r"^    (lapse worker --kv \S+:/.*)$", PAGE, re.MULTILINE)
    _, *words = shlex.split(places(line, tmp_path))
    stores = [word for word in words if ":/" in word]
    directory, remote = stores
    for url in stores:
        with lapse.kv.open(url) as store:
            store.put(b"k", b"v", ttl="1 ms")
    with lapse.kv.open(remote) as application:
        application.put(b"k", b"first")
        with serving(*words) as worker:
            worker.wait_for(f"store {directory}: ")
            assert "already open for writing" in worker.wait_for(f"store {remote} was not purged")
        application.put(b"k", b"second")
        application.flush()
        assert application.get(b"k") == b"second"
    with serving(*words) as worker:
        worker.wait_for(f"store {remote}: ")


@pytest.mark.parametrize("url", ["rocksdb:/var/lib/app/sessions", "slatedb:s3://name:secret@bucket/prefix"])
def test_holds_and_the_like_are_refused_with_what_stores_have_instead(url: str) -> None:
    with pytest.raises(UnsupportedUrl) as refused:
        open_engine(url)
    assert "pause but no holds" in str(refused.value) and "secret" not in str(refused.value)
