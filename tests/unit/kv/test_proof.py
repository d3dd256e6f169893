"""What is looked at after a purge, by where a store lies."""

from __future__ import annotations

import asyncio

import pytest

from lapse.kv.slatedb.purge import Proof
from lapse.kv.url import parse
from lapse.kv.verify import Sample


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
    proof = Proof(parse(f"slatedb:{kind}://bucket/p"), admin, Sample(), is_over=lambda: False)
    proof.sample.add(b"k", b"payload")
    asyncio.run(proof.begin())
    found = asyncio.run(proof.check())
    assert (found.clean, found.files, found.files_left) == (False, 1, ("p/compacted/old.sst",))
    admin.names = ["p/compacted/new.sst", "p/wal/1.sst"]
    found = asyncio.run(proof.check())
    assert (found.clean, found.files, found.payloads) == (True, 1, 0)
    assert found.unchecked == (
        "the bytes of the objects, and which of the log's objects remain: Lapse does not read objects"
    )
