"""Which process has a store open for writing."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from lapse.errors import StoreLocked
from lapse.kv.ttl import from_millis
from lapse.kv.url import StoreUrl


def describe_owner(now_ms: int) -> str:
    """This process, as it notes itself in a store in a bucket."""
    return f"process {os.getpid()} on {socket.gethostname()}, since {from_millis(now_ms).isoformat()}"


def store_locked(url: StoreUrl, owner: str) -> StoreLocked:
    by = f" ({owner})" if owner else ""
    hint = "purge it in that process, with store.purge() or a Purger; to read it, open it with read_only=True"
    if url.remote is not None:
        hint += "; if the process is gone for good, open the store once with take_over=True"
    return StoreLocked(f"{url} is already open for writing{by}", hint=hint)


def lock_owner(file: Path) -> str:
    """The process with a lock on a file, where the system says it (Linux); empty where it does not."""
    try:
        found = file.stat()
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return ""
    return next((f"process {words[4]}" for words in locks if words[5] == place and words[1] != "->"), "")
