"""Keys of deleted rows, as the ledger keeps them: keyed hashes, which tell nothing to those without the secret.

A batch is kept in one of two forms. Of most keys each has a hash of its own. Keys that are one whole number are
neighbours more often than not, and a hash for each would cost more than deleting the row: there each 64 neighbours have
one hash, beside which 64 bits say which of them are gone. The bits are hidden by another part of the same hash, which a
salt makes different in each batch, so that no two of them are hidden alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha224, sha256
from secrets import token_bytes

HASH_BYTES = 8
"""Of the SHA-256 of a secret and a key, how many are kept. Among a billion keys a wrong one matches once in 18 billion
questions. Since the rest of the digest is unknown, nothing can be appended to what was hashed."""
SECRET_BYTES = 32
NEIGHBOURS_BITS = 6
NEIGHBOURS = 1 << NEIGHBOURS_BITS
"""How many numbers share a hash: those that differ in the last bits alone."""
_BITS = tuple(1 << place for place in range(NEIGHBOURS))
RECORD_BYTES = HASH_BYTES + NEIGHBOURS // 8
SALT_BYTES = 16
GROUPED = "groups:"
"""Before the digest of a batch whose keys are kept by neighbours."""

Part = bytes | None
"""The value of one column of a primary key, as text in UTF-8; None is NULL, which only SQLite has in one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedKey:
    """A key as the engine writes it; `number` where it is one whole number."""

    written: bytes
    number: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """What the keys of one table are hashed with."""

    id: int
    value: bytes = field(repr=False)

    def hashed(self, key: bytes) -> bytes:
        return sha256(self.value + key).digest()[:HASH_BYTES]

    def noted(self, keys: Iterable[bytes]) -> Noted:
        """Of keys as the engine writes them. All in one expression: it is done for each row that is deleted."""
        value = self.value
        hashes = b"".join([sha256(value + key).digest()[:HASH_BYTES] for key in keys])
        return Noted(secret=self.id, rows=len(hashes) // HASH_BYTES, hashes=hashes)

    def noted_numbers(self, numbers: Sequence[int]) -> Noted:
        """Of keys that are one whole number each, by neighbours; where they have few, as `noted` does."""
        groups: defaultdict[int, int] = defaultdict(int)
        for number in numbers:
            groups[number >> NEIGHBOURS_BITS] |= _BITS[number & NEIGHBOURS - 1]
        if 2 * len(groups) > len(numbers):
            # A record takes twice as much as a hash.
            return self.noted(map(written_number, numbers))
        salt = token_bytes(SALT_BYTES)
        records = b"".join([self._record(salt, group, which) for group, which in groups.items()])
        return Noted(secret=self.id, rows=len(numbers), hashes=salt + records, grouped=True)

    def has_deleted(self, noted: Noted, asked: AskedKey) -> int:
        """How many of a batch's rows had this key."""
        if not noted.grouped:
            return noted.count(self.hashed(asked.written))
        if asked.number is None:
            return 0
        salt, group = noted.hashes[:SALT_BYTES], asked.number >> NEIGHBOURS_BITS
        hidden = self._record(salt, group, 0)
        return sum(
            (int.from_bytes(noted.hashes[place : place + RECORD_BYTES], "big") ^ int.from_bytes(hidden, "big"))
            >> (asked.number & NEIGHBOURS - 1)
            & 1
            for place in _places(noted.hashes, hidden[:HASH_BYTES], SALT_BYTES, RECORD_BYTES)
        )

    def _record(self, salt: bytes, group: int, which: int) -> bytes:
        hashed = sha256(self.value + salt + group.to_bytes(8, "big", signed=True)).digest()[:RECORD_BYTES]
        return (int.from_bytes(hashed, "big") ^ which).to_bytes(RECORD_BYTES, "big")


@dataclass(frozen=True, kw_only=True, slots=True)
class Noted:
    """What is kept of the keys that one batch has deleted, and the id of their secret: a hash of each, one after the
    other; or, `grouped`, a salt and records of neighbours, each with a hash and hidden bits."""

    secret: int
    rows: int
    hashes: bytes
    grouped: bool = False

    @property
    def digest(self) -> str:
        return GROUPED + sha224(self.hashes).hexdigest() if self.grouped else sha256(self.hashes).hexdigest()

    @property
    def is_whole(self) -> bool:
        """Can these be the keys of as many rows?"""
        if self.grouped:
            records, rest = divmod(len(self.hashes) - SALT_BYTES, RECORD_BYTES)
            return rest == 0 and self.rows <= records * NEIGHBOURS
        return len(self.hashes) == self.rows * HASH_BYTES

    def count(self, wanted: bytes) -> int:
        """How many of the hashes are this one."""
        return sum(1 for _ in _places(self.hashes, wanted, 0, HASH_BYTES))


def _places(hashes: bytes, wanted: bytes, start: int, step: int) -> Iterator[int]:
    """Where in `hashes` from `start` on one of the pieces, each `step` bytes long, begins with what is wanted."""
    place = hashes.find(wanted, start)
    while place >= 0:
        if (place - start) % step == 0:
            yield place
        place = hashes.find(wanted, place + 1)


def digest_of(batches: Iterable[tuple[int, str]]) -> str:
    """Of a job, by the rows and the digests of its batches, in the order in which they are stored."""
    return sha256(b"".join(b"%d:%s," % (rows, digest.encode("ascii")) for rows, digest in batches)).hexdigest()


def written(key: Sequence[Part]) -> bytes:
    """Each value with its length before it, so that no two keys are the same bytes."""
    return b"".join(map(written_alone, key))


def written_alone(part: Part) -> bytes:
    """The same for a key of one column."""
    return b"-," if part is None else b"%d:%b," % (len(part), part)


def written_number(number: int) -> bytes:
    return written_alone(b"%d" % number)


def asked(key: Sequence[Part]) -> AskedKey:
    """A key that `written` or, as one whole number, `written_number` has written."""
    (only,) = key if len(key) == 1 else (None,)
    digits = b"" if only is None else only.removeprefix(b"-")
    is_number = digits.isdigit() and (digits == b"0" or not digits.startswith(b"0")) and len(digits) <= 20
    return AskedKey(written=written(key), number=int(only) if only is not None and is_number else None)
