"""`python -m lapse` is the `lapse` command."""

from lapse.cli import entry

entry()
