"""The `lapse` command, and `python -m lapse`."""

from __future__ import annotations

import gc
import sys

EXIT_INTERRUPTED = 130
GARBAGE_AFTER = 10_000
"""Objects that may come before Python looks for garbage among all that there are. What is imported is none, and looking
for it there, after each 700, is a tenth of the time in which a command starts."""


def main() -> int:
    gc.set_threshold(GARBAGE_AFTER)
    try:
        # Loading the libraries takes a moment, in which Ctrl-C is no reason for a traceback.
        from lapse.cli import main as run

        return run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
