"""The URL and table that most commands begin with."""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lapse.app.textfile import decoded, read_text
from lapse.errors import UnsupportedUrl, UsageError
from lapse.model.hold import read_instant

if TYPE_CHECKING:
    from lapse.app import Lapse

ENVIRONMENT = "LAPSE_URL"
GATE_ENVIRONMENT = "LAPSE_GATE_SQL"
"""Not a setting: a role that may write settings must not have a query run with the rights of the worker."""

Url = Annotated[
    str | None,
    typer.Argument(metavar="URL", help=f"The database, such as sqlite:///app.db. Default: ${ENVIRONMENT}."),
]
TableArgument = Annotated[str | None, typer.Argument(metavar="TABLE", help="A table with a TTL policy.")]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs instead of a table.")]


def script_text(file: Path | None) -> str:
    """Of a file; without one, or of `-`, what stdin gives."""
    if file is not None and str(file) != "-":
        return read_text(file)
    return decoded(sys.stdin.buffer.read(), "stdin") if hasattr(sys.stdin, "buffer") else sys.stdin.read()


def open_database(url: str | None, *, create: bool = False) -> Lapse:
    """The facade; an SQLite file that does not exist is refused unless the command may create it."""
    url = database_url(url)
    if not url:
        raise UsageError("which database?", hint=f"give a URL such as sqlite:///app.db, or set {ENVIRONMENT}")
    require_text(f"${ENVIRONMENT}", url)
    if not looks_like_url(url):
        raise UnsupportedUrl(f"{url!r} is not a database URL", hint=f"for an SQLite file: sqlite:///{url}")
    # What only reads its arguments loads no database library.
    from lapse.app import Lapse

    return Lapse(url, must_exist=not create, gate_sql=os.environ.get(GATE_ENVIRONMENT))


def require_text(name: str, value: str) -> None:
    """Raises UsageError where a byte of an argument or of a variable is not in the encoding of the locale."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UsageError(f"{name} is not valid {sys.getfilesystemencoding()}: {value!r}")


def database_url(url: str | None) -> str | None:
    """The one given, or else the environment's."""
    return url or os.environ.get(ENVIRONMENT)


def looks_like_url(text: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+_.-]*:", text) is not None


def shifted(url: str | None, *rest: str | None) -> tuple[str | None, ...]:
    """Where the URL was left out because the environment has it, what stands in its place belongs one further."""
    if url is None or looks_like_url(url) or not os.environ.get(ENVIRONMENT):
        return (url, *rest)
    if rest[-1:] != (None,):
        raise UsageError(f"{url!r} is not a database URL", hint="the URL comes first")
    return (None, url, *rest[:-1])


def url_and_table(url: str | None, table: str | None) -> tuple[str | None, str]:
    url, table = shifted(url, table)
    if table is None:
        raise UsageError("which table?", hint="name it after the URL; `lapse status` lists those with a policy")
    return url, table


def read_moment(text: str | None, option: str) -> datetime | None:
    """An instant as an option says it."""
    return None if text is None else read_instant(text, option)
