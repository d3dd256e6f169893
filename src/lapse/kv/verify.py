"""Looking for purged rows in a store's files, byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lapse.kv.values import Verification

SAMPLE_ROWS = 64
MAX_PAYLOAD_BYTES = 256
"""Of a longer payload its beginning is looked for."""
MIN_KEY_BYTES = 8
"""A shorter key may be found anywhere by chance."""
BLOCK_BYTES = 1 << 20

IsOver = Callable[[], bool]
"""Whether there is no time left."""


@dataclass(kw_only=True)
class Sample:
    """Rows about to be purged, and the names of the files that could hold them when they still were there.

    A payload is a row as it is stored, header included: a live row with the same value has another expiry and is not
    taken for it. A key is looked for as a manifest or a list of units has it, between its length and what follows:
    another key may begin with it.
    """

    payloads: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    files: frozenset[str] = frozenset()
    searchable: frozenset[bytes] = frozenset()

    @property
    def is_full(self) -> bool:
        return max(len(self.payloads), len(self.keys)) >= SAMPLE_ROWS

    def add(self, key: bytes, payload: bytes) -> None:
        if self.is_full:
            return
        beginning = payload[:MAX_PAYLOAD_BYTES]
        if beginning not in self.payloads:
            self.payloads.append(beginning)
        if len(key) >= MIN_KEY_BYTES:
            self.keys.append(key)

    def left_of(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(names) & self.files))


def total_bytes(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        try:
            total += file.stat().st_size
        except FileNotFoundError:  # removed by the engine meanwhile
            continue
    return total


def take_sample(sample: Sample, files: Iterable[Path], *, is_over: IsOver) -> None:
    """Which files could hold the rows, and which rows can be found in them at all."""
    files = list(files)
    sample.files = frozenset(file.name for file in files)
    sample.searchable = frozenset(search(files, sample.payloads, is_over=is_over)[0])


def check(
    sample: Sample, files: Sequence[Path], *, is_over: IsOver, manifests: Sequence[Path] = (), elsewhere: int = 0
) -> Verification:
    """`files` may hold rows, `manifests` may hold keys with a length before them."""
    payloads, unread = search(files, sample.payloads, is_over=is_over)
    needles = [needle for key in sample.keys for needle in _with_length(key)]
    keys, also_unread = search(manifests, needles, is_over=is_over)
    unread += also_unread
    return Verification(
        files=len(files) + len(manifests),
        payloads=len(sample.payloads),
        payloads_searchable=len(sample.searchable),
        payloads_left=len(payloads),
        keys_left=len({needle[1:] for needle in keys}),
        files_left=sample.left_of(file.name for file in (*files, *manifests)),
        files_elsewhere=elsewhere,
        unchecked=f"the bytes of {unread} files: there was no time" if unread else None,
    )


def _with_length(key: bytes) -> Iterator[bytes]:
    """With the last byte of a length before it: the engine's (eight more, in seven bits a byte) and Lapse's own."""
    length = len(key) + 8
    yield bytes([length & 0x7F if length < 0x80 else (length >> 7) & 0x7F]) + key
    yield bytes([len(key) & 0xFF]) + key


def search(files: Sequence[Path], payloads: Sequence[bytes], *, is_over: IsOver) -> tuple[set[bytes], int]:
    """Which payloads occur in any of the files, and for how many files there was no time."""
    found: set[bytes] = set()
    overlap = max((len(payload) for payload in payloads), default=1) - 1
    for index, file in enumerate(files):
        missing = [payload for payload in payloads if payload not in found]
        if not missing:
            break
        if is_over():
            return found, len(files) - index
        found.update(_search_file(file, missing, overlap))
    return found, 0


def _search_file(file: Path, payloads: Sequence[bytes], overlap: int) -> set[bytes]:
    found: set[bytes] = set()
    tail = b""
    try:
        with file.open("rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                window = tail + block
                found.update(payload for payload in payloads if payload in window)
                tail = window[-overlap:] if overlap else b""
    except FileNotFoundError:  # removed by the engine while it was searched: then nothing is left in it
        return set()
    return found
