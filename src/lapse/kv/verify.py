"""Looking for purged payloads in a store's files, byte by byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lapse.kv.values import Verification

SAMPLE_PAYLOADS = 64
MIN_PAYLOAD_BYTES = 8
"""Shorter ones occur by chance."""
MAX_PAYLOAD_BYTES = 256
"""Of a longer payload its beginning is looked for."""
_BLOCK_BYTES = 1 << 20


@dataclass(kw_only=True)
class Sample:
    """Payloads about to be purged, and the files that existed when they still were there."""

    payloads: list[bytes] = field(default_factory=list)
    files: frozenset[Path] = frozenset()
    searchable: frozenset[bytes] = frozenset()

    def add(self, payload: bytes) -> None:
        if len(payload) >= MIN_PAYLOAD_BYTES and len(self.payloads) < SAMPLE_PAYLOADS:
            self.payloads.append(payload[:MAX_PAYLOAD_BYTES])


def take_sample(sample: Sample, files: Iterable[Path]) -> None:
    sample.files = frozenset(files)
    sample.searchable = search(sample.files, sample.payloads)


def check(sample: Sample, files: Iterable[Path], *, kept: Sequence[bytes] = ()) -> Verification:
    """`kept` are payloads that live rows have as well: finding those proves nothing."""
    files = list(files)
    wanted = [payload for payload in sample.payloads if not any(payload in live for live in kept)]
    left = search(files, wanted)
    return Verification(
        files=len(files),
        payloads=len(wanted),
        payloads_searchable=len(sample.searchable.intersection(wanted)),
        payloads_left=len(left),
        files_left=tuple(sorted(file.name for file in sample.files.intersection(files))),
    )


def search(files: Iterable[Path], payloads: Sequence[bytes]) -> frozenset[bytes]:
    """Which payloads occur in any of the files."""
    found: set[bytes] = set()
    overlap = max((len(payload) for payload in payloads), default=1) - 1
    for file in files:
        missing = [payload for payload in payloads if payload not in found]
        if not missing:
            break
        found.update(_search_file(file, missing, overlap))
    return frozenset(found)


def _search_file(file: Path, payloads: Sequence[bytes], overlap: int) -> set[bytes]:
    found: set[bytes] = set()
    try:
        with file.open("rb") as stream:
            tail = b""
            while block := stream.read(_BLOCK_BYTES):
                window = tail + block
                found.update(payload for payload in payloads if payload in window)
                tail = window[-overlap:] if overlap else b""
    except FileNotFoundError:  # removed by the engine while we looked: then nothing is left in it
        return set()
    return found
