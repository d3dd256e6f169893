"""Which destinations this process may write to: `$LAPSE_ARCHIVES`, with the options and credentials that they take.

A policy only names a place. Whether a process goes there is decided where that runs, never in a database: a role that
may declare policies could else have a worker write to any folder, or reach any address, with the worker's rights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from lapse.archive.address import AZ, Address, parse
from lapse.archive.archive import Archive
from lapse.archive.files import Files
from lapse.archive.writer import TARGET_BYTES
from lapse.errors import ArchiveUnavailable, UnsupportedUrl

ENVIRONMENT = "LAPSE_ARCHIVES"
"""URLs separated by spaces; each allows what is at it and below it."""


def open_allowed(url: str, *, target_bytes: int = TARGET_BYTES) -> Archive:
    """The archive at a place that a policy names. Raises ArchiveUnavailable where this process may not go there."""
    return Archive(Files(allowed_address(url)), target_bytes=target_bytes)


def allowed_address(url: str) -> Address:
    # Of an az:// URL the account is an option, which comes from the environment.
    wanted = parse(url, **({"account_name": "-"} if url.startswith(f"{AZ}:") else {}))
    for known in _known():
        if known.scheme == wanted.scheme and f"{wanted.path}/".startswith(f"{known.path}/"):
            return replace(wanted, options=known.options)
    options = "?account_name=NAME" if wanted.scheme == AZ else ""
    raise ArchiveUnavailable(
        f"this process may not archive to {url}",
        hint=f"where workers run, and wherever ttl_archive is declared: {ENVIRONMENT}='{url}{options}'",
    )


def _known() -> Iterator[Address]:
    for number, text in enumerate(os.environ.get(ENVIRONMENT, "").split(), start=1):
        try:
            yield parse(text)
        except UnsupportedUrl as error:
            # Without the text, which may hold credentials.
            raise UnsupportedUrl(f"${ENVIRONMENT}, URL {number}: {error.message}", hint=error.hint or "") from error
