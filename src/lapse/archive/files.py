"""Files at a destination: pyarrow's file systems, and the one place where their errors become Lapse's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.archive.address import AZ, GS, S3, Address
from lapse.archive.loading import arrow
from lapse.errors import ArchiveDamaged, ArchiveUnavailable, LapseError

CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 60.0
RETRIES = 3
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivedFile:
    """A file: its path inside the archive, and its size."""

    path: str
    bytes: int


class Files:
    """All paths are inside the archive. A local folder must be there: a disk that is not mounted is not written to."""

    def __init__(self, address: Address) -> None:
        self.address = address
        with self.errors("open"):
            self._system = _file_system(address)

    @contextmanager
    def errors(self, doing: str, path: str = "") -> Iterator[None]:
        """Everything that the file system says no to, as ArchiveUnavailable, without secrets."""
        try:
            yield
        except LapseError:
            raise
        except (OSError, arrow().ArrowException) as error:
            reason = self.address.scrub(" ".join(str(error).split()))
            if "checksum" in reason.lower():
                raise self.damaged(path, reason) from error
            where = self.address.at(path)
            raise ArchiveUnavailable(f"cannot {doing} {where}: {reason}", hint=_hint(reason)) from error

    def damaged(self, path: str, reason: str) -> ArchiveDamaged:
        return ArchiveDamaged(
            f"{self.address.at(path)} is damaged: {' '.join(reason.split())}",
            hint="restore the file from a backup of the archive, or remove it; none of its rows was used",
            path=path,
        )

    def check_root(self) -> None:
        with self.errors("find"):
            found = self._system.get_file_info(self.address.path.split("/")[0] if not self._local else self._full(""))
        if found.type != arrow("fs").FileType.Directory:
            hint = "create the folder, or mount its disk" if self._local else "create the bucket, or correct its name"
            raise ArchiveUnavailable(f"{self.address} is not there", hint=hint)

    def find(self, path: str) -> ArchivedFile | None:
        with self.errors("find", path):
            found = self._system.get_file_info(self._full(path))
        return ArchivedFile(path=path, bytes=found.size) if found.type == arrow("fs").FileType.File else None

    def walk(self, folder: str = "") -> list[ArchivedFile]:
        """Every file below a folder, by name."""
        library = arrow("fs")
        selector = library.FileSelector(self._full(folder), recursive=True, allow_not_found=True)
        with self.errors("list", folder):
            found = self._system.get_file_info(selector)
        start = len(self._full("")) + 1
        files = (each for each in found if each.type == library.FileType.File)
        return sorted(
            (ArchivedFile(path=each.path[start:], bytes=each.size) for each in files), key=lambda each: each.path
        )

    def folders(self) -> list[str]:
        library = arrow("fs")
        with self.errors("list"):
            found = self._system.get_file_info(library.FileSelector(self._full(""), allow_not_found=True))
        return sorted(each.base_name for each in found if each.type == library.FileType.Directory)

    def create(self, path: str) -> Any:
        """An output stream; the folders that it needs are made."""
        self.check_root()
        with self.errors("write", path):
            self._make_folder(path)
            return self._system.open_output_stream(self._full(path))

    def open(self, path: str) -> Any:
        with self.errors("read", path):
            return self._system.open_input_file(self._full(path))

    def read(self, path: str) -> bytes:
        with self.errors("read", path), self._system.open_input_stream(self._full(path)) as stream:
            return bytes(stream.read())

    def write(self, path: str, content: bytes) -> None:
        stream = self.create(path)
        with self.errors("write", path), stream:
            stream.write(content)
        self.make_durable(path)

    def make_durable(self, path: str) -> None:
        """A local file that is complete survives a crash of the machine; an object does when it is written."""
        if self._local:
            with self.errors("write", path):
                _sync(Path(self._full(path)))
                _sync(Path(self._full(path)).parent)

    def move(self, path: str, to: str) -> None:
        """Whole, or not at all. An object is copied and then removed: after a crash there may be both."""
        with self.errors("publish", to):
            self._make_folder(to)
            if self._local:
                self._system.move(self._full(path), self._full(to))
                _sync(Path(self._full(to)).parent)
            else:
                self._system.copy_file(self._full(path), self._full(to))
                self._system.delete_file(self._full(path))

    def delete(self, path: str) -> None:
        """A file that is not there is as good as deleted."""
        with self.errors("remove", path), suppress(FileNotFoundError):
            self._system.delete_file(self._full(path))

    @property
    def _local(self) -> bool:
        return self.address.is_local

    def _full(self, path: str) -> str:
        return f"{self.address.path}/{path}" if path else self.address.path

    def _make_folder(self, path: str) -> None:
        """Object stores have no folders, and asking one for a bucket's needs a right of its own."""
        if self._local:
            folder = Path(self._full(path)).parent
            missing = [each for each in (folder, *folder.parents) if not each.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            for each in reversed(missing):
                _sync(each.parent)


def _file_system(address: Address) -> Any:
    library, options = arrow("fs"), {name: _value(name, text) for name, text in address.options.items()}
    if address.scheme == S3:
        given = {"connect_timeout": CONNECT_SECONDS, "request_timeout": REQUEST_SECONDS} | options
        retrying = library.AwsStandardS3RetryStrategy(max_attempts=RETRIES)
        return library.S3FileSystem(**given, retry_strategy=retrying, background_writes=False)
    if address.scheme == GS:
        return library.GcsFileSystem(**options)
    return library.AzureFileSystem(**options) if address.scheme == AZ else library.LocalFileSystem()


def _value(name: str, text: str) -> Any:
    if name.endswith("_timeout"):
        return float(text)
    return text == "true" if name in ("anonymous", "force_virtual_addressing") else text


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hint(reason: str) -> str:
    told = reason.lower()
    if any(word in told for word in ("access_denied", "accessdenied", "access denied", "forbidden", "permission")):
        return "give Lapse's account the right to list, read, write and delete there"
    if any(word in told for word in ("no space", "file too large", "quota", "enospc")):
        return "make room there; nothing more is deleted until then"
    if any(word in told for word in ("no_such_bucket", "nosuchbucket", "bucket does not exist")):
        return "create the bucket, or correct its name"
    if any(word in told for word in ("curlcode", "could not connect", "network", "timeout", "timed out")):
        return "is the server there? Lapse tries again"
    return (
        "create the folder, or mount its disk" if "no such file" in told else "correct the destination, and try again"
    )
