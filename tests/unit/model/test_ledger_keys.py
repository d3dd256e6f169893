"""What is kept of deleted keys: each one that went is found, no other is, and nothing is told without the secret."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.model.ledger_keys import (
    GROUPED,
    HASH_BYTES,
    RECORD_BYTES,
    SALT_BYTES,
    AskedKey,
    Noted,
    Secret,
    asked,
    written_number,
)

SECRET = Secret(id=1, value=bytes(range(32)))
NUMBERS = st.integers(min_value=-(2**63), max_value=2**64 - 1)


def ask(number: int) -> AskedKey:
    found = asked([b"%d" % number])
    assert found == AskedKey(written=written_number(number), number=number)
    return found


@given(start=NUMBERS, steps=st.lists(st.integers(min_value=1, max_value=200), max_size=300))
def test_exactly_the_numbers_that_went_are_found(start: int, steps: list[int]) -> None:
    numbers = [start]
    for step in steps:
        numbers.append(numbers[-1] + step)
    numbers = [number for number in numbers if number < 2**64]
    noted = SECRET.noted_numbers(numbers)
    assert noted.rows == len(numbers) and noted.is_whole
    near = {each + by for each in numbers for by in (-64, -1, 0, 1, 64)}
    for number in near:
        if -(2**63) <= number < 2**64:
            assert SECRET.has_deleted(noted, ask(number)) == (number in numbers)


def test_neighbours_share_a_record_and_others_have_a_hash_each() -> None:
    near, far = SECRET.noted_numbers(range(640)), SECRET.noted_numbers(range(0, 64_000, 64))
    assert near.grouped and len(near.hashes) == SALT_BYTES + 10 * RECORD_BYTES
    assert not far.grouped and len(far.hashes) == 1000 * HASH_BYTES


def test_what_was_recorded_key_by_key_is_still_found() -> None:
    noted = SECRET.noted([written_number(number) for number in range(64)])
    assert not noted.grouped and SECRET.has_deleted(noted, ask(63)) == 1 and SECRET.has_deleted(noted, ask(64)) == 0


def test_no_two_batches_hide_the_same_keys_alike() -> None:
    """Not even which of the bits are different, where the neighbours are the same."""
    batches = [SECRET.noted_numbers([*range(32)]) for _ in range(50)]
    for at in (slice(SALT_BYTES), slice(SALT_BYTES, SALT_BYTES + HASH_BYTES), slice(-HASH_BYTES, None)):
        assert len({each.hashes[at] for each in batches}) == 50


def test_another_secret_finds_nothing() -> None:
    other = Secret(id=2, value=bytes(32))
    assert not any(other.has_deleted(SECRET.noted_numbers(range(64)), ask(number)) for number in range(64))


def test_a_digest_covers_each_byte_and_the_form() -> None:
    noted = SECRET.noted_numbers(range(64))
    assert noted.digest.startswith(GROUPED) and len(noted.digest) <= 64
    for place in range(len(noted.hashes)):
        changed = noted.hashes[:place] + bytes([noted.hashes[place] ^ 1]) + noted.hashes[place + 1 :]
        assert replace(noted, hashes=changed).digest != noted.digest
    assert replace(noted, grouped=False).digest != noted.digest


@pytest.mark.parametrize(("rows", "size", "grouped", "whole"), [
    (2, 16, False, True), (2, 8, False, False), (40, 32, True, True), (40, 40, True, False), (65, 32, True, False),
    (1, 16, True, False), (1, 0, True, False), (0, 0, False, True),
])  # fmt: skip
def test_as_many_bytes_as_the_rows_need(rows: int, size: int, grouped: bool, whole: bool) -> None:
    assert Noted(secret=1, rows=rows, hashes=bytes(size), grouped=grouped).is_whole is whole


@pytest.mark.parametrize("key", ["007", "1.5", "", "x", "-", "١", "1_000", "9" * 40])
def test_what_is_no_number_as_a_database_writes_it(key: str) -> None:
    assert asked([key.encode()]).number is None
    assert asked([b"1", b"2"]).number is None
