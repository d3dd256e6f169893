"""Opening RocksDB, and the one place where its errors become Lapse's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lapse.errors import DatabaseError, ForeignStore, LapseError, MissingExtra, NotFound, StoreClosed
from lapse.kv.options import Options
from lapse.kv.owner import lock_owner, store_locked
from lapse.kv.url import StoreUrl

META_FAMILY = "lapse"
ROWS_FAMILY = "default"

_COMPACT_AFTER_DELETES = (10_000, 5_000, 0.5)
"""A file with this many deletions among this many entries is compacted soon: it is what a purge leaves
behind."""

_FILTER_BITS = 10
"""Per row, in memory: a table without the key is read for one get in a hundred."""
_BLOCK_BYTES = 16 * 1024
_RESTART_ROWS = 4

_LEFT_BY_CREATION = re.compile(r"LOCK|LOG(\.old\..*)?|IDENTITY|MANIFEST-.*|OPTIONS-.*|.*\.dbtmp|\d+\.log")
"""What the engine has made before the file that makes a directory a database."""


def load() -> Any:
    """rocksdict has no types worth the name, so what comes from it is Any, here and only here."""
    try:
        import rocksdict
    except ImportError as error:
        raise MissingExtra("RocksDB (rocksdict)", "kv") from error
    return rocksdict


def translate(url: StoreUrl, error: Exception) -> Exception:
    text = str(error)
    if type(error).__name__ == "DbClosedError":
        return StoreClosed(f"{url} is closed")
    if "LOCK" in text and ("lock hold" in text or "While lock file" in text):
        return store_locked(url, lock_owner(url.path / "LOCK") if url.path is not None else "")
    if type(error) is Exception:  # what rocksdict raises for every status RocksDB returns
        return DatabaseError(f"{url}: {text}")
    return error


@contextmanager
def lapse_errors(url: StoreUrl) -> Iterator[None]:
    try:
        yield
    except LapseError:
        raise
    except Exception as error:
        raise translate(url, error) from error


class Handle:
    """A database or a column family of the engine, whose calls raise Lapse's errors. `raw` is it itself, for calls that
    must be as quick as they can; None once it is closed."""

    def __init__(self, raw: Any, url: StoreUrl) -> None:
        self.raw = raw
        self._url = url

    def __getattr__(self, name: str) -> Any:
        if self.raw is None:
            raise StoreClosed(f"{self._url} is closed")
        method = getattr(self.raw, name)

        def call(*args: Any, **options: Any) -> Any:
            with lapse_errors(self._url):
                return method(*args, **options)

        return call

    def close(self) -> None:
        """The binding's `close` may fail and leave the database open: it is closed when nothing refers to it."""
        raw, self.raw = self.raw, None
        try:
            if raw is not None:
                raw.close()
        finally:
            del raw


def options(rocksdict: Any, *, create: bool = False) -> Any:
    result = rocksdict.Options(raw_mode=True)
    result.create_if_missing(create)
    result.create_missing_column_families(create)
    result.set_delete_obsolete_files_period_micros(0)
    # The small family of Lapse's own is flushed with the rows: else it would keep every log since the store was opened.
    result.set_atomic_flush(True)
    # The manifest names the first and last key of every table that ever was; a new one names those of today.
    result.set_max_manifest_file_size(1)
    result.add_compact_on_deletion_collector_factory(*_COMPACT_AFTER_DELETES)
    result.set_block_based_table_factory(_blocks(rocksdict))
    return result


def _blocks(rocksdict: Any) -> Any:
    """How rows lie in table files. It pays for the header that Lapse adds to every row: together these make a get and
    a scan a tenth faster than with the engine's defaults and a miss twice as fast, for three bytes per row."""
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_bloom_filter(_FILTER_BITS, False)
    blocks.set_block_size(_BLOCK_BYTES)
    # Inside a block a get finds its row by hash, then in a run of rows this long.
    blocks.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    blocks.set_block_restart_interval(_RESTART_ROWS)
    return blocks


def open_database(url: StoreUrl, opened: Options) -> Any:
    """The database with all its column families. One that Lapse did not write is refused before it is opened for
    writing: opening alone would already change it."""
    rocksdict, path = load(), url.path
    assert path is not None
    families = [ROWS_FAMILY, META_FAMILY]
    if (path / "CURRENT").is_file():
        found = rocksdict.Rdict.list_cf(str(path))
        if META_FAMILY not in found and (opened.read_only or not _is_unfinished(rocksdict, path, found)):
            raise ForeignStore(f"{url} was not written by Lapse", hint="copy its rows to a new store")
        families = list(dict.fromkeys([*found, META_FAMILY]))
    else:
        if opened.read_only or not opened.create:
            raise NotFound(f"there is no store at {url}", hint="leave out read_only=True and create=False to create it")
        if path.is_file():
            raise ForeignStore(f"{path} is a file, not a RocksDB store", hint="give the path of a new directory")
        if path.is_dir() and not all(_LEFT_BY_CREATION.fullmatch(file.name) for file in path.iterdir()):
            raise ForeignStore(f"{path} is not empty and is not a RocksDB store", hint="give a new directory")
        path.mkdir(parents=True, exist_ok=True)
    access = rocksdict.AccessType
    return rocksdict.Rdict(
        str(path),
        options(rocksdict, create=not opened.read_only),
        column_families={name: options(rocksdict) for name in families},
        access_type=access.read_only(False) if opened.read_only else access.read_write(),
    )


def is_empty(database: Any) -> bool:
    first = database.iter()
    first.seek_to_first()
    if first.valid():
        return False
    check_status(first)
    return True


def check_status(iterator: Any) -> None:
    """An iterator that is at no row is at its end only if the engine has no error to report."""
    try:
        iterator.status()
    except Exception as error:
        raise DatabaseError(f"reading failed, and what was read so far is not used: {error}") from error


def _is_unfinished(rocksdict: Any, path: Path, families: list[str]) -> bool:
    """A database without a row and with no family but the engine's own: a process was killed while it created it."""
    if families != [ROWS_FAMILY]:
        return False
    plain = rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict(str(path), plain, access_type=rocksdict.AccessType.read_only(False))
    try:
        return is_empty(database)
    finally:
        database.close()
