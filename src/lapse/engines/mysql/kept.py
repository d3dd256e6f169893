"""Keys of a batch that stay on the server, in a variable of the session, where it cannot refuse to wait for a lock.

MySQL has to be told which rows to lock before it is told to delete them. As lists in statements the keys of a batch
would travel three times, and the client would spend more time on them than on everything else.
"""

from __future__ import annotations

from lapse.engines.mysql.keys import Form, Walk

KEYS, LAST, FOUND = "@lapse_keys", "@lapse_last", "@lapse_found"
TOLD = f"{FOUND}, {LAST}"
"""What was remembered: how many keys, and the last of them."""
FIRST = " JOIN_PREFIX(`k`@`lapse_kept`)"
"""For the optimizer: the keys are read first, and each row is looked up by its own."""


def can_keep(walk: Walk) -> bool:
    """A key that is one whole number: the same in a JSON document, and looked up in the index when it comes back."""
    return len(walk.parts) == 1 and walk.parts[0].form is Form.NUMBER


def keep(walk: Walk, found: str) -> str:
    """Remembers the keys that `found` selects, in the order of the walk, how many they are and the last of them."""
    last = "min" if walk.parts[0].descending else "max"
    key = walk.parts[0].selected
    what = f"json_arrayagg({key}), coalesce({last}({key}), 0), count(*)"
    return f"SELECT {what} INTO {KEYS}, {LAST}, {FOUND} FROM ({found}) AS found"


def bound(walk: Walk) -> str:
    """True for rows whose key was remembered."""
    part = walk.parts[0]
    kind = "BIGINT UNSIGNED" if part.unsigned else "BIGINT"
    listed = f"JSON_TABLE({KEYS}, '$[*]' COLUMNS (lapse_key {kind} PATH '$')) AS k"
    return f"{part.sql} IN (SELECT /*+ QB_NAME(`lapse_kept`) */ k.lapse_key FROM {listed})"
