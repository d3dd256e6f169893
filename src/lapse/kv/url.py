"""Which store a URL means, and which process has it open for writing."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lapse.errors import StoreLocked, UnsupportedUrl
from lapse.kv.ttl import from_millis

SLATEDB = "slatedb"
ROCKSDB = "rocksdb"
_REMOTE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_REWRITTEN = re.compile(r"""[^ -~]|[\\{^}%`\]">\[~<#|*?]""")
"""Characters that SlateDB escapes in the name of a store: once for its manifest, twice for its rows, which it then does
not find again to collect them."""

_FORMS = "slatedb:/path, slatedb:s3://bucket/prefix, slatedb:memory: or rocksdb:/path"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreUrl:
    """Exactly one of `path` and `remote` is set, or neither for a store in memory."""

    engine: str
    path: Path | None = None
    remote: str | None = None

    @property
    def in_memory(self) -> bool:
        return self.path is None and self.remote is None

    @property
    def full(self) -> str:
        """With everything that is needed to open it: never to be shown."""
        return f"{self.engine}:{self.remote}" if self.remote is not None else str(self)

    def __str__(self) -> str:
        """Without user name and password: this is what errors and logs show."""
        if self.remote is None:
            return f"{self.engine}:{self.path or 'memory:'}"
        parts = urlsplit(self.remote)
        host = parts.netloc.rpartition("@")[2]
        return f"{self.engine}:{parts.scheme}://{host}{parts.path}"


def parse(text: str) -> StoreUrl:
    engine, colon, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon or engine not in (SLATEDB, ROCKSDB):
        raise UnsupportedUrl(f"{engine or 'this'!r} is not a key-value store", hint=f"write {_FORMS}")
    if rest == "memory:":
        if engine == ROCKSDB:
            raise UnsupportedUrl("rocksdb has no store in memory", hint="write slatedb:memory: or rocksdb:/path")
        return StoreUrl(engine=engine)
    if "://" in rest and not rest.startswith("file://"):
        return _remote(engine, rest)
    path = rest.removeprefix("file://")
    while path.startswith("//"):
        path = path[1:]
    if not path.strip() or "\0" in path:
        raise UnsupportedUrl(f"{engine}: needs a path", hint=f"write {_FORMS}")
    found = Path(path).expanduser().absolute()
    if engine == SLATEDB:
        _check_name(found.name)
    return StoreUrl(engine=engine, path=found)


def _remote(engine: str, rest: str) -> StoreUrl:
    parts = urlsplit(rest)
    if engine != SLATEDB or parts.scheme not in _REMOTE:
        raise UnsupportedUrl(f"{engine} cannot live at {parts.scheme}://", hint=f"write {_FORMS}")
    if not parts.netloc or not parts.path.strip("/"):
        raise UnsupportedUrl(f"{engine}:{parts.scheme}:// needs a bucket and a prefix", hint=f"write {_FORMS}")
    _check_name(rest.partition("://")[2].partition("/")[2])
    return StoreUrl(engine=engine, remote=rest)


def _check_name(name: str) -> None:
    bad = _REWRITTEN.search(name)
    if bad is not None:
        raise UnsupportedUrl(f"a SlateDB store cannot have {bad[0]!r} in its name", hint="use letters, digits, - and _")


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
