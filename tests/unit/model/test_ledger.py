"""The chain of the ledger: no entry can be changed, removed or moved without being named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.model.ledger import FIRST, Chain, ChainVerdict, EntryKind, Head, LedgerEntry, canonical
from lapse.model.table import TableName

LENGTH = 6
TEXTS = ("at", "kind", "role", "user", "host", "program", "before", "after", "previous", "hash")


def _entry(number: int, **fields: Any) -> LedgerEntry:
    values: dict[str, Any] = {
        "id": number + 10, "at": f"2026-01-0{number}T00:00:00.000000Z", "kind": EntryKind.SETTING,
        "table": TableName("events", "app"), "role": "owner", "user": "alice", "host": "db1", "program": "lapse",
        "before": '{"value":"fast"}', "after": canonical({"number": number}),
    }  # fmt: skip
    return LedgerEntry(**values | fields)


def _sealed(*entries: LedgerEntry) -> list[LedgerEntry]:
    found, previous = [], FIRST
    for number, entry in enumerate(entries, 1):
        sealed = replace(entry, sequence=number, previous=previous, hash=entry.sealed_as(number, previous))
        found.append(sealed)
        previous = sealed.hash or ""
    return found


CHAIN = _sealed(*(_entry(number) for number in range(1, LENGTH + 1)))


def _verdict(entries: list[LedgerEntry], *anchors: Head) -> ChainVerdict:
    chain = Chain(anchors={each.sequence: each.hash for each in anchors})
    chain.follow(entries)
    return chain.verdict(waiting=0)


def test_a_chain_as_it_was_written() -> None:
    verdict = _verdict(CHAIN, Head(sequence=3, hash=CHAIN[2].hash or ""))
    assert verdict.holds
    assert (verdict.first, verdict.entries, verdict.head.sequence) == (1, LENGTH, LENGTH)


@given(st.integers(0, LENGTH - 1), st.sampled_from(TEXTS), st.data())
def test_any_changed_byte_is_named(place: int, name: str, data: st.DataObject) -> None:
    text = getattr(CHAIN[place], name)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda letter: letter != text[at]))
    changed = replace(CHAIN[place], **{name: text[:at] + other + text[at + 1 :]})
    verdict = _verdict([*CHAIN[:place], changed, *CHAIN[place + 1 :]])
    assert not verdict.holds and verdict.broken_at == place + 1


@pytest.mark.parametrize("fields", [
    {"id": 99}, {"table": None}, {"table": TableName("events")}, {"table": TableName("eventsapp", "")}, {"role": None},
    {"role": ""}, {"before": None}, {"user": "alicedb1", "host": ""},
])  # fmt: skip
def test_what_moves_from_one_field_to_the_next_is_a_change(fields: dict[str, Any]) -> None:
    assert _verdict([*CHAIN[:2], replace(CHAIN[2], **fields), *CHAIN[3:]]).broken_at == 3


@given(st.sets(st.integers(0, LENGTH - 1), min_size=1))
def test_what_was_removed_is_named(places: set[int]) -> None:
    left = [entry for place, entry in enumerate(CHAIN) if place not in places]
    verdict = _verdict(left, Head(sequence=LENGTH, hash=CHAIN[-1].hash or ""))
    assert not verdict.holds and verdict.broken_at == min(places) + 1


@given(st.permutations(range(LENGTH)))
def test_another_order_is_named(order: list[int]) -> None:
    """By an attacker who gives the entries new numbers, in another order."""
    moved = [replace(CHAIN[place], sequence=number) for number, place in enumerate(order, 1)]
    wrong = [number for number, place in enumerate(order, 1) if number != place + 1]
    assert _verdict(moved).broken_at == (min(wrong) if wrong else None)


def test_the_whole_chain_made_anew_is_told_by_what_was_noted() -> None:
    """Who may write all of it can make another one: that is what a head outside of the database is for."""
    forged = _sealed(*(_entry(number, user="mallory") for number in range(1, LENGTH + 1)))
    noted = Head(sequence=4, hash=CHAIN[3].hash or "")
    assert _verdict(forged).holds
    assert _verdict(forged, noted).broken_at == 4


def test_pruned_entries_are_on_record() -> None:
    gone = {"first": 1, "last": 2, "hash": CHAIN[1].hash}
    whole = _sealed(
        *(_entry(number) for number in range(1, 4)), _entry(4, kind=EntryKind.PRUNED, before=canonical(gone))
    )
    assert _verdict(whole[2:]).holds and _verdict(whole[2:]).pruned == 2
    assert _verdict(whole[1:]).broken_at == 1
    assert _verdict(whole[2:3]).broken_at == 1


def test_what_was_noted_and_is_pruned_cannot_be_compared() -> None:
    """But for the last of those that were pruned, whose hash is on record."""
    gone = {"first": 1, "last": 2, "hash": CHAIN[1].hash}
    whole = _sealed(
        *(_entry(number) for number in range(1, 4)), _entry(4, kind=EntryKind.PRUNED, before=canonical(gone))
    )
    assert _verdict(whole[2:], Head(sequence=2, hash=CHAIN[1].hash or "")).holds
    assert _verdict(whole[2:], Head(sequence=2, hash="f" * 64)).broken_at == 2
    assert _verdict(whole[2:], Head(sequence=1, hash=CHAIN[0].hash or "")).broken_at == 1


def test_an_empty_ledger_is_a_broken_one() -> None:
    assert _verdict([]).broken_at == 1


def test_what_is_no_number_is_no_place() -> None:
    """SQLite stores anything anywhere."""
    assert _verdict([*CHAIN[:2], replace(CHAIN[2], sequence="x")]).broken_at == 3  # type: ignore[arg-type]
    assert not _verdict([replace(CHAIN[0], sequence="x")]).holds  # type: ignore[arg-type]
