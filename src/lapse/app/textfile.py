"""Text that comes from a file or a pipe: UTF-8, or an error with the place where it is not."""

from __future__ import annotations

from pathlib import Path

from lapse.errors import FileProblem, UsageError


def read_text(path: Path) -> str:
    """Raises FileProblem for a file that is not UTF-8, UsageError for a path that cannot be one."""
    try:
        data = path.read_bytes()
    except ValueError as error:
        # A NUL in the path.
        raise UsageError(f"{str(path)!r} is no path of a file: {error}") from error
    return decoded(data, str(path))


def decoded(data: bytes, name: str) -> str:
    """A byte order mark in front is passed over."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].rpartition(b"\n")[2]
        raise FileProblem(
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            path=name,
            line=data.count(b"\n", 0, error.start) + 1,
            column=len(before.decode("utf-8", "replace")) + 1,
            hint="save the file as UTF-8, or convert it with iconv",
        ) from error
