"""What is looked at after a purge, by where a store lies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lapse.kv.slatedb.proof import Proof
from lapse.kv.url import parse


class Admin:
    """Lists objects, like SlateDB's; `names` changes between two looks."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    async def delete_db(self, confirm: bool) -> list[str]:
        assert confirm is False
        return self.names


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_objects_that_can_only_be_listed(kind: str) -> None:
    admin = Admin("p/compacted/old.sst", "p/wal/1.sst", "p/manifest/1.manifest")
    proof = Proof(parse(f"slatedb:{kind}://bucket/p"), admin, is_over=lambda: False)
    proof.sample.add(b"payload")
    asyncio.run(proof.begin())
    found = asyncio.run(proof.check())
    assert (found.clean, found.files, found.files_left) == (False, 1, ("p/compacted/old.sst",))
    admin.names = ["p/compacted/new.sst", "p/wal/1.sst"]
    found = asyncio.run(proof.check())
    assert (found.clean, found.files, found.payloads) == (True, 1, 0)
    assert found.unchecked == (
        "the bytes of the objects, and which of the log's objects remain: "
        f"Lapse reads objects of s3://, not of {kind}://"
    )


def test_objects_that_are_not_where_they_should_be(tmp_path: Path) -> None:
    proof = Proof(parse(f"slatedb:{tmp_path / 'empty'}"), Admin("empty/compacted/1.sst"), is_over=lambda: False)
    found = asyncio.run(proof.check())
    assert "there are none where they should be" in str(found.unchecked)


def test_a_bucket_whose_keys_are_not_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    proof = Proof(parse("slatedb:s3://bucket/p"), Admin("p/compacted/new.sst"), is_over=lambda: False)
    found = asyncio.run(proof.check())
    assert "AWS_SECRET_ACCESS_KEY are not in the environment" in str(found.unchecked)
