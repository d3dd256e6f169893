"""Text that comes from a file or a pipe: UTF-8, or an error with the place where it is not."""

from __future__ import annotations

from pathlib import Path

from lapse.errors import FileProblem, NotFound, UsageError


def read_text(path: Path, *, missing: str | None = None) -> str:
    """Raises FileProblem for a file that is not UTF-8, UsageError for a path that cannot be one; `missing` is the hint
    where there is no such file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint=missing) from error
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
