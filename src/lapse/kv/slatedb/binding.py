"""An optional cure for the slowest thing in SlateDB's Python binding.

The binding copies every key and value into Rust's memory one byte at a time, in Python: 0.4 ms for a value of
one kilobyte. `use_fast_copy` puts a block copy in its place, for the whole process, which is why it is never
done unasked. It knows the binding's version 0.17 and its exact shape, and refuses any other.
"""

from __future__ import annotations

import ctypes
import inspect
from importlib.metadata import version
from typing import Any

from lapse.errors import Unsupported
from lapse.kv.slatedb.engine import load

_KNOWN_VERSION = "0.17."
_KNOWN_LINES = ("with self._reserve(len(value)):", "for i, byte in enumerate(value):")

_original: Any = None


def use_fast_copy(wanted: bool = True) -> None:
    """Put the block copy in place, or with False the binding's own routine back."""
    global _original
    load()
    from slatedb.uniffi._slatedb_uniffi import slatedb as generated

    builder = generated._UniffiRustBufferBuilder
    if wanted and _original is None:
        found, source = version("slatedb"), inspect.getsource(builder.write)
        if not found.startswith(_KNOWN_VERSION) or not all(line in source for line in _KNOWN_LINES):
            raise Unsupported(f"slatedb {found} is not the binding that use_fast_copy knows", hint="leave it out")
        _original, builder.write = builder.write, _write
    elif not wanted and _original is not None:
        builder.write, _original = _original, None


def _write(self: Any, value: bytes) -> None:
    count = len(value)
    with self._reserve(count):
        ctypes.memmove(ctypes.addressof(self.rbuf.data.contents) + self.rbuf.len, bytes(value), count)
