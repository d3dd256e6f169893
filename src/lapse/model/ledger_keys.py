"""Keys of deleted rows, as the ledger keeps them: keyed hashes, which tell nothing to those without the secret."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

HASH_BYTES = 8
"""Of the SHA-256 of a secret and a key, how many are kept. Among a billion keys a wrong one matches once in 18 billion
questions. Since the rest of the digest is unknown, nothing can be appended to what was hashed."""
SECRET_BYTES = 32

Part = bytes | None
"""The value of one column of a primary key, as text in UTF-8; None is NULL, which only SQLite has in one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """What the keys of one table are hashed with."""

    id: int
    value: bytes = field(repr=False)

    def hashed(self, key: bytes) -> bytes:
        return self.noted([key]).hashes

    def noted(self, keys: Iterable[bytes]) -> Noted:
        """Of keys as the engine writes them. All in one expression: it is done for each row that is deleted."""
        value = self.value
        return Noted(secret=self.id, hashes=b"".join([sha256(value + key).digest()[:HASH_BYTES] for key in keys]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Noted:
    """The hashes of the keys that one batch has deleted, one after the other, and the id of their secret."""

    secret: int
    hashes: bytes

    @property
    def rows(self) -> int:
        return len(self.hashes) // HASH_BYTES

    @property
    def digest(self) -> str:
        return sha256(self.hashes).hexdigest()

    def count(self, wanted: bytes) -> int:
        """How many of the hashes are this one."""
        pieces = range(0, len(self.hashes), HASH_BYTES)
        return sum(self.hashes[place : place + HASH_BYTES] == wanted for place in pieces)


def digest_of(batches: Iterable[tuple[int, str]]) -> str:
    """Of a job, by the rows and the digests of its batches, in the order in which they are stored."""
    return sha256(b"".join(b"%d:%s," % (rows, digest.encode("ascii")) for rows, digest in batches)).hexdigest()


def written(key: Sequence[Part]) -> bytes:
    """Each value with its length before it, so that no two keys are the same bytes."""
    return b"".join([b"-," if part is None else b"%d:%b," % (len(part), part) for part in key])


def written_number(number: int) -> bytes:
    """The same for a key that is one whole number."""
    digits = b"%d" % number
    return b"%d:%b," % (len(digits), digits)
