"""What is searched after a purge where Lapse cannot read the files."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.kv.options import Budget
from lapse.kv.slatedb.purge import SlatePurge
from lapse.kv.url import parse


class Admin:
    """Lists objects, like SlateDB's; `names` changes between two looks."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    async def delete_db(self, confirm: bool) -> list[str]:
        assert confirm is False
        return self.names


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_objects_can_only_be_listed(kind: str) -> None:
    admin = Admin("p/compacted/old.sst", "p/wal/1.sst", "p/manifest/1.manifest")
    state = SimpleNamespace(url=parse(f"slatedb:{kind}://bucket/p"))
    store: Any = SimpleNamespace(state=state, admin=admin, cutoff_ms=lambda: (0, 0))
    purge = SlatePurge(store, Budget(within="1 minute"))
    purge.sample.add(b"k", b"payload")
    purge.sample.files = frozenset(asyncio.run(purge.file_names()))
    found = asyncio.run(purge.search())
    assert (found.clean, found.files, found.files_left) == (False, 1, ("p/compacted/old.sst",))
    admin.names = ["p/compacted/new.sst", "p/wal/1.sst"]
    found = asyncio.run(purge.search())
    assert (found.clean, found.files, found.payloads) == (True, 1, 0)
    assert found.unchecked == (
        "the bytes of the objects, and which of the log's objects remain: Lapse does not read objects"
    )
