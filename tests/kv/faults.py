"""Ways to break a store's files, as disks do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DAMAGED_BYTES = 200


def largest_table(path: Path) -> Path:
    """The store's largest file of rows, of either engine."""
    return max(path.rglob("*.sst"), key=lambda file: file.stat().st_size)


@contextmanager
def bad_block(path: Path, *, at: float = 0.5) -> Iterator[None]:
    """Damages a part of the largest table while inside; afterwards the disk is well again."""
    file = largest_table(path)
    whole = file.read_bytes()
    offset = int(len(whole) * at)
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(bytes(byte ^ 0x5A for byte in whole[offset : offset + DAMAGED_BYTES]))
    try:
        yield
    finally:
        if file.exists():
            with file.open("r+b") as stream:
                stream.seek(offset)
                stream.write(whole[offset : offset + DAMAGED_BYTES])


@contextmanager
def lost_file(path: Path) -> Iterator[None]:
    """Takes the largest table away while inside."""
    file = largest_table(path)
    aside = path.parent / "lost"
    file.rename(aside)
    try:
        yield
    finally:
        aside.rename(file)


@contextmanager
def small_disk(path: Path, *, megabytes: int) -> Iterator[Path]:
    """A file system of its own, that can be filled up."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def full(path: Path) -> Iterator[None]:
    """Fills the disk up while inside."""
    filler = path / "filler"
    try:
        with filler.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"\0" * 4096)
    except OSError:
        pass
    try:
        yield
    finally:
        filler.unlink()
