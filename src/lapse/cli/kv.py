"""`lapse kv`: look into key-value stores, write to them, purge them."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

import lapse.kv
from lapse.cli.failures import EXIT_INCOMPLETE
from lapse.cli.opening import Json
from lapse.cli.output import Output, json_value
from lapse.errors import InvalidValue, NotFound, UsageError
from lapse.kv import Meta, Store, Ttl, TtlLike
from lapse.kv.url import SLATEDB

DEFAULT_SCAN_LIMIT = 100
DEFAULT_HISTORY = 20


class Encoding(StrEnum):
    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


app = typer.Typer(
    name="kv",
    help="Key-value stores with per-row TTL: slatedb:/path, slatedb:s3://bucket/prefix, rocksdb:/path.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Url = Annotated[str, typer.Argument(metavar="URL", help="slatedb:/path, slatedb:s3://bucket/prefix or rocksdb:/path.")]
As = Annotated[Encoding, typer.Option("--as", help="How keys and values are written, here and in the output.")]
Expired = Annotated[bool, typer.Option("--include-expired", help="Show rows that have expired but are still stored.")]


@app.command()
def put(
    url: Url,
    key: Annotated[str, typer.Argument()],
    value: Annotated[str, typer.Argument(help="The value; - reads it from standard input.")],
    ttl: Annotated[str | None, typer.Option(help="How long the row lives, such as '30 days'.")] = None,
    expires_at: Annotated[str | None, typer.Option(help="When it expires: ISO 8601 with a zone.")] = None,
    no_expiry: Annotated[bool, typer.Option("--no-expiry", help="The row never expires.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the store if there is none.")] = False,
    encoding: As = Encoding.TEXT,
    as_json: Json = False,
) -> None:
    """Write a row; without --ttl, --expires-at or --no-expiry it gets the store's default TTL."""
    output, lifetime = Output(), _read_ttl(ttl, expires_at, no_expiry)
    name = _decode(key, encoding, "key")
    data = sys.stdin.buffer.read() if value == "-" else _decode(value, encoding, "value")
    with _open(url, create=create, take_over=False) as store:
        store.put(name, data, ttl=lifetime)
        store.flush()
        meta = store.meta(name, include_expired=True)
    if as_json:
        output.json(_meta_fields(meta, encoding))
    else:
        output.line(_expiry_text(meta))


@app.command()
def get(
    url: Url,
    key: Annotated[str, typer.Argument()],
    include_expired: Expired = False,
    meta: Annotated[bool, typer.Option("--meta", help="Show the row's times as well.")] = False,
    encoding: As = Encoding.TEXT,
    as_json: Json = False,
) -> None:
    """Print a row's value; exit code 1 if there is no live row."""
    output, name = Output(), _decode(key, encoding, "key")
    with _open(url, read_only=True) as store:
        value = store.get(name, include_expired=include_expired)
        times = store.meta(name, include_expired=include_expired)
    if value is None:
        raise NotFound(f"no row {key!r}", hint=None if include_expired else "try --include-expired")
    if as_json:
        output.json({**_meta_fields(times, encoding), **_field("value", value, encoding)})
        return
    if encoding is Encoding.TEXT:
        sys.stdout.buffer.write(value + b"\n")
        sys.stdout.buffer.flush()
    else:
        output.line(_encode(value, encoding)[0])
    if meta:
        output.err.print(_expiry_text(times))


@app.command()
def scan(
    url: Url,
    prefix: Annotated[str | None, typer.Option(help="Only keys that begin with this.")] = None,
    start: Annotated[str | None, typer.Option(help="From this key on.")] = None,
    end: Annotated[str | None, typer.Option(help="Up to, not including, this key.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most this many rows; 0 for all.")] = DEFAULT_SCAN_LIMIT,
    include_expired: Expired = False,
    encoding: As = Encoding.TEXT,
    as_json: Json = False,
) -> None:
    """List rows in key order; with --json one object per line."""
    output, bounds = Output(), {"prefix": prefix, "start": start, "end": end}
    given = {name: _decode(text, encoding, name) for name, text in bounds.items() if text is not None}
    with _open(url, read_only=True) as store:
        rows = store.scan(**given, limit=limit or None, include_expired=include_expired)
        found = ((key, value, store.meta(key, include_expired=include_expired)) for key, value in rows)
        if as_json:
            for key, value, meta in found:
                row = _meta_fields(meta, encoding) | _field("key", key, encoding) | _field("value", value, encoding)
                output.raw(json.dumps(row, default=json_value) + "\n")
        else:
            cells = [(_cell(key, encoding), _cell(value, encoding), *_times(meta)) for key, value, meta in found]
            output.table(("key", "value", "expires", "remaining"), cells)


@app.command()
def stats(url: Url, as_json: Json = False) -> None:
    """Show what a store says about itself, without reading its rows; `preview` counts them."""
    with _open(url, read_only=True) as store:
        found = store.stats()
    _show(asdict(found), as_json)


@app.command()
def preview(url: Url, as_json: Json = False) -> None:
    """Show what a purge would remove now, rows and bytes, and what expires next; reads every row, changes nothing."""
    with _open(url, read_only=True) as store:
        found = store.preview()
    _show(asdict(found), as_json)


@app.command()
def history(
    url: Url,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = DEFAULT_HISTORY,
    as_json: Json = False,
) -> None:
    """List the latest purges: when, how many rows, how long, and what was left for another one."""
    output = Output()
    with _open(url, read_only=True) as store:
        records = store.history()[:limit]
    if as_json:
        output.json([asdict(record) for record in records])
        return
    rows = [
        (
            _shown(record.at),
            record.purged,
            "?" if record.left is None else record.left,
            _shown(record.elapsed_s),
            "verified" if record.verified else "yes" if record.complete else "no",
            _shown(record.reasons),
        )
        for record in records
    ]
    output.table(("at", "purged", "left", "seconds", "complete", "reasons"), rows, right=("purged", "left", "seconds"))


@app.command()
def pause(
    url: Url,
    reason: Annotated[str, typer.Option(help="Why; `stats`, `preview` and refused purges show it.")] = "paused",
) -> None:
    """Keep every purge from removing rows, until `lapse kv resume`. Expired rows stay invisible.

    SlateDB's own compaction drops rows some time after they have expired, paused or not.
    """
    with _open(url, create=False, take_over=False) as store:
        store.pause(reason)
        drops_itself = store.stats().engine == SLATEDB
    if drops_itself:
        Output().err.print("SlateDB's own compaction still drops expired rows; `lapse kv put --no-expiry` keeps one")


@app.command()
def resume(url: Url) -> None:
    """Let purges remove rows again."""
    with _open(url, create=False, take_over=False) as store:
        store.resume()


@app.command()
def clock(
    url: Url,
    trust: Annotated[
        bool, typer.Option("--trust", help="This machine's clock is right: take its time for the store's.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the latest time that a store has seen, or with --trust set it to now.

    A store refuses a clock that is behind that time, or far ahead of it: rows would come back, or all
    would expire. Use --trust once a wrong clock is right again, or for a store that was not used for a year.
    """
    output = Output()
    with _open(url, read_only=True) as store:
        mark = store.stats().clock_mark
    if trust:
        with _open(url, create=False, take_over=False, trust_clock=True) as store:
            mark = store.stats().clock_mark
    if as_json:
        output.json({"clock_mark": mark})
    else:
        output.line(mark.isoformat())


@app.command()
def purge(
    url: Url,
    within: Annotated[
        str | None,
        typer.Option(help="Go on until the bytes are gone and the files verified, for at most this long."),
    ] = None,
    rows_per_second: Annotated[float | None, typer.Option(help="Remove at most this many rows per second.")] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Cut off the process that has a store in a bucket open for writing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove expired rows; exit code 3 if some had to stay for now."""
    with _open(url, create=False, take_over=take_over) as store:
        result = store.purge(within=within, rows_per_second=rows_per_second)
    _show(asdict(result), as_json)
    if not result.complete:
        raise typer.Exit(EXIT_INCOMPLETE)


@app.command()
def ttl(
    url: Url,
    value: Annotated[
        str | None, typer.Argument(help="The new default, such as '30 days', or 'none' for rows that stay.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the store's default TTL, or change it; rows already written keep theirs."""
    output = Output()
    if value is None:
        with _open(url, read_only=True) as store:
            default = store.stats().default_ttl
    else:
        with _open(url, create=False, take_over=False) as store:
            store.set_default_ttl(None if value.strip().lower() == "none" else value)
            default = store.stats().default_ttl
    if as_json:
        output.json({"default_ttl": default})
    else:
        output.line(default or "none")


@contextmanager
def _open(url: str, **options: Any) -> Iterator[Store]:
    """The store, with what this command has to say where there is none."""
    try:
        store = lapse.kv.open(url, **options)
    except NotFound as error:
        raise NotFound(error.message, hint="`lapse kv put --create` creates one") from error
    with store:
        yield store


def _read_ttl(ttl: str | None, expires_at: str | None, no_expiry: bool) -> TtlLike:
    if (ttl is not None) + (expires_at is not None) + no_expiry > 1:
        raise UsageError("give one of --ttl, --expires-at and --no-expiry: they cannot be combined")
    if no_expiry:
        return Ttl.NO_EXPIRY
    if expires_at is None:
        return Ttl.DEFAULT if ttl is None else ttl
    try:
        moment = datetime.fromisoformat(expires_at)
    except ValueError:
        raise InvalidValue("--expires-at", expires_at, "must be ISO 8601, such as 2030-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise InvalidValue("--expires-at", expires_at, f"has no zone; write {expires_at}Z for UTC")
    return moment


def _decode(text: str, encoding: Encoding, name: str) -> bytes:
    try:
        if encoding is Encoding.HEX:
            return bytes.fromhex(text)
        if encoding is Encoding.BASE64:
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise InvalidValue(name, text, f"must be {encoding.value}") from None
    return text.encode("utf-8", "surrogateescape")


def _encode(data: bytes, encoding: Encoding) -> tuple[str, str]:
    """The text and how it is written: bytes that are no text are shown in base64 rather than mangled."""
    if encoding is Encoding.HEX:
        return data.hex(), encoding.value
    if encoding is Encoding.TEXT:
        try:
            return data.decode(), encoding.value
        except UnicodeDecodeError:
            pass
    return base64.b64encode(data).decode(), Encoding.BASE64.value


def _field(name: str, data: bytes, encoding: Encoding) -> dict[str, str]:
    text, written_as = _encode(data, encoding)
    return {name: text} if written_as == encoding.value else {name: text, f"{name}_as": written_as}


def _meta_fields(meta: Meta | None, encoding: Encoding) -> dict[str, Any]:
    if meta is None:
        return {"created": None, "expires": None, "remaining": None, "expired": False}
    fields = _field("key", meta.key, encoding) | {name: getattr(meta, name) for name in ("created", "expires")}
    seconds = None if meta.remaining is None else meta.remaining.total_seconds()
    return fields | {"remaining": seconds, "expired": meta.expired}


def _show(fields: dict[str, Any], as_json: bool) -> None:
    """A line for each field that says something."""
    output = Output()
    if as_json:
        output.json(fields)
        return
    width = max(map(len, fields))
    for name, value in fields.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items() if item not in (None, ()))
        if value not in (None, (), ""):
            output.line(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")


def _times(meta: Meta | None) -> tuple[str, str]:
    if meta is None:
        return "never", "never"
    return _shown(meta.expires), "expired" if meta.expired else _shown(meta.remaining)


def _cell(data: bytes, encoding: Encoding) -> str:
    text, written_as = _encode(data, encoding)
    return text if written_as == encoding.value else f"{text} ({written_as})"


def _expiry_text(meta: Meta | None) -> str:
    if meta is None or meta.expires is None:
        return "never expires"
    return f"{'expired' if meta.expired else 'expires'} {meta.expires.isoformat()}"


def _shown(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, tuple):
        return "; ".join(str(item) for item in value)
    return "never" if value is None else str(value)
