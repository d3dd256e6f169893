"""Looking for purged payloads in a store's files, byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lapse.kv.values import Verification

SAMPLE_PAYLOADS = 64
MAX_PAYLOAD_BYTES = 256
"""Of a longer payload its beginning is looked for."""
BLOCK_BYTES = 1 << 20


class File(Protocol):
    """A file of a store, or an object."""

    @property
    def name(self) -> str: ...

    def blocks(self) -> Iterator[bytes]:
        """Its bytes; FileNotFoundError if it has been removed."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def blocks(self) -> Iterator[bytes]:
        with self.path.open("rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                yield block


@dataclass(kw_only=True)
class Sample:
    """Payloads about to be purged, and the names of the files that existed when they still were there.

    A payload is a row as it is stored, header included: a live row with the same value has another expiry and is not
    taken for it.
    """

    payloads: list[bytes] = field(default_factory=list)
    files: frozenset[str] = frozenset()
    searchable: frozenset[bytes] = frozenset()

    def add(self, payload: bytes) -> None:
        beginning = payload[:MAX_PAYLOAD_BYTES]
        if len(self.payloads) < SAMPLE_PAYLOADS and beginning not in self.payloads:
            self.payloads.append(beginning)

    def left_of(self, files: Iterable[File]) -> tuple[str, ...]:
        return tuple(sorted(file.name for file in files if file.name in self.files))


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    found: frozenset[bytes]
    unread: int
    """Files for which there was no time."""


def take_sample(sample: Sample, files: Iterable[File], *, is_over: Callable[[], bool]) -> None:
    files = list(files)
    sample.files = frozenset(file.name for file in files)
    sample.searchable = search(files, sample.payloads, is_over=is_over).found


def check(sample: Sample, files: Iterable[File], *, is_over: Callable[[], bool]) -> Verification:
    files = list(files)
    result = search(files, sample.payloads, is_over=is_over)
    unchecked = f"the bytes of {result.unread} files: there was no time" if result.unread else None
    return Verification(
        files=len(files),
        payloads=len(sample.payloads),
        payloads_searchable=len(sample.searchable),
        payloads_left=len(result.found),
        files_left=sample.left_of(files),
        unchecked=unchecked,
    )


def search(files: Sequence[File], payloads: Sequence[bytes], *, is_over: Callable[[], bool]) -> Search:
    """Which payloads occur in any of the files."""
    found: set[bytes] = set()
    overlap = max((len(payload) for payload in payloads), default=1) - 1
    for index, file in enumerate(files):
        missing = [payload for payload in payloads if payload not in found]
        if not missing:
            break
        if is_over():
            return Search(found=frozenset(found), unread=len(files) - index)
        found.update(_search_file(file, missing, overlap))
    return Search(found=frozenset(found), unread=0)


def _search_file(file: File, payloads: Sequence[bytes], overlap: int) -> set[bytes]:
    found: set[bytes] = set()
    tail = b""
    try:
        for block in file.blocks():
            window = tail + block
            found.update(payload for payload in payloads if payload in window)
            tail = window[-overlap:] if overlap else b""
    except FileNotFoundError:  # removed by the engine while we looked: then nothing is left in it
        return set()
    return found
