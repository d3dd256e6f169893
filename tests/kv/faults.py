"""Ways to break a store's files, as disks do."""

from __future__ import annotations

import inspect
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from lapse.errors import DatabaseError
from lapse.kv import Store
from lapse.kv.slatedb.engine import Guarded

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


class FailingCalls:
    """An object of the engine whose calls are counted; the one numbered `fails` is an error, before the engine has
    done anything or after it has done all of it."""

    def __init__(self, inner: Any, calls: CallCount) -> None:
        self._inner = inner
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "raw":
            return found

        def call(*args: Any, **options: Any) -> Any:
            is_failing = self._calls.next(name)
            if is_failing and self._calls.before:
                raise DatabaseError(f"injected: {name}")
            answer = found(*args, **options)
            if inspect.iscoroutine(answer):
                return self._awaited(answer, name, is_failing)
            if is_failing:
                raise DatabaseError(f"injected after {name}")
            return answer

        return call

    async def _awaited(self, work: Any, name: str, is_failing: bool) -> Any:
        answer = await work
        if is_failing:
            raise DatabaseError(f"injected after {name}")
        return FailingCalls(answer, self._calls) if isinstance(answer, Guarded) else answer


class CallCount:
    def __init__(self, fails: int, *, before: bool) -> None:
        self.before = before
        self.made: list[str] = []
        self._fails = fails

    @property
    def has_failed(self) -> bool:
        return len(self.made) >= self._fails

    def next(self, name: str) -> bool:
        self.made.append(name)
        return len(self.made) == self._fails


@contextmanager
def failing_calls(store: Store, calls: CallCount) -> Iterator[None]:
    """Every call of the store into its engine passes by `calls` while inside; not those of an iterator."""
    inner: Any = cast(Any, store)._inner
    names = [name for name in ("handle", "meta_family", "admin") if hasattr(inner, name)]
    whole = {name: getattr(inner, name) for name in names}
    for name, found in whole.items():
        setattr(inner, name, FailingCalls(found, calls))
    try:
        yield
    finally:
        for name, found in whole.items():
            setattr(inner, name, found)
