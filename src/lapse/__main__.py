"""The `lapse` command, and `python -m lapse`."""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    try:
        # Loading the libraries takes a moment, in which Ctrl-C is no reason for a traceback.
        from lapse.cli import main as run

        return run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
