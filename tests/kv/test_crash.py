"""Processes killed in the middle of their work."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import lapse.kv
from tests.kv import writer_process
from tests.kv.conftest import START, Opener


@pytest.mark.parametrize("acknowledged", [3, 18])
def test_a_killed_writer_loses_nothing_it_made_durable(opener: Opener, acknowledged: int) -> None:
    generation, now = kill_after(opener, acknowledged)
    for attempt in range(2):  # a crash, a recovery, and a second one on top
        opener.clock.set(now + timedelta(minutes=7))  # what the killed process may have begun
        store = opener()
        found = {key: store.get(key) for key in writer_process.KEYS}
        generations = {int(value) for value in found.values() if value is not None}
        assert len(generations) == 1, "a batch was torn"
        assert None not in found.values()
        assert generations <= {generation, generation + 1}
        assert store.get(b"deleted") is None
        opener.clock.advance(timedelta(minutes=10))
        assert store.get(b"short") is None
        opener.clock.advance(timedelta(days=2))
        assert list(store.scan()) == []
        result = store.purge(within="20 seconds")
        assert result.complete, result
        assert list(store.scan(include_expired=True)) == []
        store.close()
        if attempt == 0:
            generation, now = kill_after(opener, 2)


def kill_after(opener: Opener, acknowledged: int) -> tuple[int, datetime]:
    """Run a writer, kill it a moment after its n-th acknowledgement; returns the last one it gave."""
    assert acknowledged >= 2, "what is deleted in the second generation must be gone"
    script = Path(writer_process.__file__)
    start = max(opener.clock.now(), START)
    process = subprocess.Popen(
        [sys.executable, str(script), opener.url, start.isoformat()],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for _ in range(acknowledged):
            line = process.stdout.readline()
            assert line, "the writer died by itself"
        time.sleep(0.002 * acknowledged)  # somewhere inside the next generation
        process.send_signal(signal.SIGKILL)
        line = ([line, *process.stdout])[-1]  # acknowledgements given before the signal arrived
        generation, moment = line.split()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return int(generation), datetime.fromisoformat(moment)


def test_a_purge_takes_what_a_killed_writer_had_begun_to_write(tmp_path: Path) -> None:
    with lapse.kv.open(f"slatedb:{tmp_path / 'store'}", default_ttl="1 hour") as store:
        store.put(b"key", b"value")
        store.flush()
        begun = tmp_path / "store" / "wal" / "00000000000000000099.sst#1"
        begun.write_bytes(b"half of a file")
        result = store.purge(within="20 seconds")
        assert result.complete, result
        assert not begun.exists()
        assert store.get(b"key") == b"value"
