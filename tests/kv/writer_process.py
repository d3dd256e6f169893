"""A process to be killed: writes generations of rows, purges in between, and says what it has made durable.

python writer_process.py URL START_ISO
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta

import lapse.kv
from lapse.clock import ManualClock

KEYS = [b"k%02d" % i for i in range(20)]


def main(url: str, start: str) -> None:
    clock = ManualClock(datetime.fromisoformat(start))
    store = lapse.kv.open(url, clock=clock, default_ttl="1 day")
    generation = 0
    while True:
        generation += 1
        clock.advance(timedelta(minutes=7))
        store.put_many([(key, b"%d" % generation) for key in KEYS], ttl="1 day")
        store.put(b"short", b"%d" % generation, ttl="10 minutes")
        if generation == 1:
            store.put(b"deleted", b"x", ttl="1 day")
        if generation == 2:
            store.delete(b"deleted")
        if generation % 5 == 0:
            store.purge()
        if generation % 9 == 0:
            store.purge(within="10 seconds")
        store.flush()
        print(f"{generation} {clock.now().isoformat()}", flush=True)  # in one piece, also where nothing is buffered


if __name__ == "__main__":
    main(*sys.argv[1:])
