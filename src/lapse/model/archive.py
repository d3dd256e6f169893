"""Where expired rows go before they are deleted: `ttl_archive` as text, and the table that it leads to.

    table:                      the archive table <table>_archive
    table:archive.events        an archive table of that name
    s3://bucket/prefix          files; rows wait for their export in the outbox <table>_outbox
    s3://bucket/prefix#name     files, with an outbox of that name

Which options and credentials a destination takes is said where workers run, never in a policy.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from lapse.errors import InvalidValue
from lapse.model.table import TableName

TABLE_SCHEME = "table:"
FILE_SCHEMES = ("file", "s3", "gs", "az")
ARCHIVED_AT, JOB, SEQUENCE = "archived_at", "lapse_job", "lapse_seq"
"""What an archive table has beside the columns of the rows: when a row came, by which job, and a growing number."""
OWN_COLUMNS = (SEQUENCE, JOB, ARCHIVED_AT)
PACKED_ROWS, PACK = "lapse_rows", "lapse_pack"
"""Where one row of an outbox may hold all the rows that a batch has deleted: how many these are, and what they are.
Both are NULL in a row that stands for itself alone."""
SUFFIX, OUTBOX_SUFFIX = "_archive", "_outbox"

_PART = r'"(?:[^"]|"")+"|[^".\s]+'
_NAME = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<name>{_PART})")
_PLAIN = re.compile(r"[^\".\s]+")
_FORMS = "must be 'table:', 'table:NAME', or where files go: 'file:///folder', 's3://bucket/prefix', 'gs://…', 'az://…'"


def read(text: str, name: str) -> str:
    """The value of the parameter `name`, checked. Raises InvalidValue."""
    word = text.strip()
    if is_file_url(word):
        return _read_url(word, name)
    if not word.startswith(TABLE_SCHEME):
        # What is no destination may hold a password all the same.
        raise InvalidValue(name, _shown(word), _FORMS)
    place = word.removeprefix(TABLE_SCHEME)
    if place and _NAME.fullmatch(place) is None:
        raise InvalidValue(name, text, 'must name a table as schema.name; parts with dots or spaces are in "quotes"')
    return word


def _read_url(word: str, name: str) -> str:
    url, _, outbox = word.partition("#")
    scheme = url.partition(":")[0]
    if "?" in url or "@" in url.partition("://")[2].partition("/")[0]:
        raise InvalidValue(
            name,
            f"{scheme}://…",
            "must have no options and no credentials: everyone who sees the policy would see them",
            hint=f"give them to workers: LAPSE_ARCHIVES='{scheme}://…?region=…'",
        )
    try:
        parts = urlsplit(url)
        path = [part for part in parts.path.split("/") if part]
        fits = bool(parts.netloc) is (scheme != "file") and (parts.netloc or parts.path.startswith("/"))
    except ValueError:
        fits, path = False, []
    if not fits or not {".", ".."}.isdisjoint(path) or (scheme == "file" and not path) or re.search(r"\s", url):
        raise InvalidValue(name, word, _FORMS)
    if outbox and _NAME.fullmatch(outbox) is None:
        raise InvalidValue(name, word, 'must name the outbox after # as schema.name; odd parts are in "quotes"')
    return url.rstrip("/") + (f"#{outbox}" if outbox else "")


def _shown(word: str) -> str:
    scheme, found, _ = word.partition("://")
    return f"{scheme}://…" if found else word


def is_file_url(text: str) -> bool:
    scheme, found, _ = text.partition("://")
    return bool(found) and scheme in FILE_SCHEMES


def file_url(text: str) -> str | None:
    """Where files go; None for an archive table."""
    return text.partition("#")[0] if is_file_url(text) else None


def archive_table(text: str, table: TableName) -> TableName:
    """The archive table of `table`, or its outbox: the one that is named, or one beside it."""
    named = text.partition("#")[2] if is_file_url(text) else text.removeprefix(TABLE_SCHEME)
    found = _NAME.fullmatch(named)
    if found is None:
        suffix = OUTBOX_SUFFIX if is_file_url(text) else SUFFIX
        return TableName(f"{table.name}{suffix}", table.schema)
    schema = found["schema"]
    return TableName(_unquoted(found["name"]), _unquoted(schema) if schema else table.schema)


def complete(text: str, table: TableName) -> str:
    """With the name written out: it stays the same archive when the table is renamed."""
    name = archive_table(text, table)
    schema = f"{_quoted(name.schema)}." if name.schema else ""
    url = file_url(text)
    return f"{TABLE_SCHEME if url is None else f'{url}#'}{schema}{_quoted(name.name)}"


def destination(text: str) -> str:
    """As people are told where rows are kept."""
    return file_url(text) or text


def label(table: TableName) -> str:
    """A table as the folder of its files; of two tables never the same."""
    parts = (table.schema, table.name) if table.schema else (table.name,)
    return ".".join(part if part and not {".", '"'} & set(part) else _always_quoted(part or "") for part in parts)


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def _quoted(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else _always_quoted(part)


def _always_quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'
