"""Opening RocksDB, and the one place where its errors become Lapse's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lapse.errors import (
    DatabaseError,
    ForeignStore,
    LapseError,
    MissingExtra,
    NotFound,
    StoreClosed,
    StoreLocked,
)
from lapse.kv.options import Options
from lapse.kv.url import StoreUrl

META_FAMILY = "lapse"
ROWS_FAMILY = "default"

_COMPACT_AFTER_DELETES = (10_000, 5_000, 0.5)
"""A file with this many deletions among this many entries is compacted soon: it is what a purge leaves
behind."""


def load() -> Any:
    """rocksdict has no types worth the name, so what comes from it is Any, here and only here."""
    try:
        import rocksdict
    except ImportError as error:
        raise MissingExtra("RocksDB (rocksdict)", "kv") from error
    return rocksdict


@contextmanager
def engine_errors(url: StoreUrl) -> Iterator[None]:
    try:
        yield
    except LapseError:
        raise
    except Exception as error:
        raise translate(url, error) from error


def translate(url: StoreUrl, error: Exception) -> Exception:
    text = str(error)
    if type(error).__name__ == "DbClosedError":
        return StoreClosed(f"{url} is closed")
    if "LOCK" in text and ("lock hold" in text or "While lock file" in text):
        return StoreLocked(f"{url} is already open for writing", hint="close it there, or open it read_only=True")
    if type(error) is Exception:  # what rocksdict raises for every status RocksDB returns
        return DatabaseError(f"{url}: {text}")
    return error


def exists(path: Path) -> bool:
    return (path / "CURRENT").is_file()


def options(rocksdict: Any, *, create: bool = False) -> Any:
    result = rocksdict.Options(raw_mode=True)
    result.create_if_missing(create)
    result.create_missing_column_families(create)
    # Else files of a dropped family may stay on disk for six hours, or until the store is opened again.
    result.set_delete_obsolete_files_period_micros(0)
    result.add_compact_on_deletion_collector_factory(*_COMPACT_AFTER_DELETES)
    blocks = rocksdict.BlockBasedOptions()
    # A get finds its row in a block by hash, not by bisection; a byte or two per row.
    blocks.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    result.set_block_based_table_factory(blocks)
    return result


def open_database(url: StoreUrl, opened: Options) -> tuple[Any, bool]:
    """The database with all its column families, and whether Lapse wrote it (True for a new one).

    A store of somebody else is refused before it is opened for writing: opening alone would already change
    it.
    """
    rocksdict, path = load(), url.path
    assert path is not None
    if not exists(path):
        if opened.read_only or not opened.create:
            raise NotFound(f"there is no store at {url}", hint="leave out read_only=True and create=False to create it")
        if path.is_file():
            raise ForeignStore(f"{path} is a file and no RocksDB store", hint="give the path of a new directory")
        if path.is_dir() and any(path.iterdir()):
            raise ForeignStore(f"{path} is not empty and no RocksDB store", hint="give the path of a new directory")
        path.mkdir(parents=True, exist_ok=True)
        families = [ROWS_FAMILY, META_FAMILY]
        ours = True
    else:
        families = rocksdict.Rdict.list_cf(str(path))
        ours = META_FAMILY in families
        if not ours and not opened.read_only:
            raise ForeignStore(
                f"{url} was not written by Lapse",
                hint="open it with read_only=True, or copy its rows to a new store",
            )
    access = rocksdict.AccessType
    database = rocksdict.Rdict(
        str(path),
        options(rocksdict, create=not opened.read_only),
        column_families={name: options(rocksdict) for name in families},
        access_type=access.read_only(False) if opened.read_only else access.read_write(),
    )
    return database, ours


def write_options(durable: bool) -> Any:
    result = load().WriteOptions()
    result.sync = durable
    return result
