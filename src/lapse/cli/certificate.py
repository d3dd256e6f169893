"""`lapse certificate`: a signed statement of what was promised and deleted, and its check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lapse.cli.opening import Url, open_database, shifted
from lapse.cli.output import Output
from lapse.errors import InvalidValue, MissingExtra, Refused, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

INCOMPLETE = 3


def certificate(
    url: Url = None,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="One table; without it: all.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="ISO 8601 with a zone, or a day (UTC).")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Not later than now.")] = None,
    output_file: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="X.json and, for reading and printing, X.html. Without it: JSON on stdout."
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="The private key; made if it is not there. Default: $LAPSE_CERTIFICATE_KEY, or in ~/.config."
        ),
    ] = None,
    verify: Annotated[Path | None, typer.Option(metavar="FILE", help="Check this certificate instead.")] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(help="With --verify: the key that must have signed it, as made beside the private one."),
    ] = None,
) -> None:
    """State, signed, what was promised and deleted in a time and what is left now, or check such a statement.

    The ledger is verified and every row of the tables is asked while it is made. Exit code 3: expired rows that should
    be gone are there, and the certificate says so.

    Example: `lapse certificate sqlite:///app.db events --from 2026-01-01 --to 2026-02-01 -o january.json`
    """
    _require_library()
    output = Output()
    if verify is not None:
        _refuse(url, table, since, until, output_file, key_file)
        _check(output, verify, public_key)
        return
    if public_key is not None:
        raise UsageError("--public-key is for --verify", hint="--key-file is the key to sign with")
    url, table = shifted(url, table)
    if since is None or until is None:
        raise UsageError("which time?", hint="--from 2026-01-01 --to 2026-02-01")
    from lapse.app.certificate import parse_time

    span, files = (parse_time("--from", since), parse_time("--to", until)), _files(output_file)
    with open_database(url) as database:
        statement = database.certificate(table, since=span[0], until=span[1])
    _write(output, statement, files, _key(output, key_file))
    if not statement["kept"]:
        output.notice("expired rows that should be gone are still there, and the certificate says so")
        raise typer.Exit(INCOMPLETE)


def _require_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise MissingExtra("cryptography, which signs and verifies,", "certificate") from None


def _refuse(*given: object) -> None:
    if any(each is not None for each in given):
        raise UsageError("--verify takes a file and perhaps --public-key, and nothing else: it needs no database")


def _check(output: Output, file: Path, public_key: Path | None) -> None:
    from lapse.app import signing

    key = None if public_key is None else signing.load_public_key(_there(public_key, "--public-key"))
    try:
        text = _there(file, "--verify").read_bytes().decode("ascii")
    except UnicodeDecodeError:
        raise signing.NotGenuine("the certificate was changed") from None
    found = signing.opened(text, key)
    named = [".".join(filter(None, (each["schema"], each["table"]))) for each in found["tables"]]
    output.line(f"Genuine: {', '.join(named)} from {found['from']} to {found['to']}, made at {found['made_at']}.")
    output.line(f"Ledger head: {found['ledger']['head']}")
    if not found["kept"]:
        output.notice("it says that expired rows that should be gone were still there")
    if key is None:
        output.notice("signed with the key that the file itself names: give --public-key to know whose it is")


def _there(file: Path, option: str) -> Path:
    if not file.is_file():
        raise InvalidValue(option, str(file), "is not a file")
    return file


def _key(output: Output, given: Path | None) -> Ed25519PrivateKey:
    from lapse.app import signing

    path = given or signing.default_key()
    if not path.exists():
        signing.make_key(path)
        output.notice(
            f"made a key: {path}, which signs and is to be kept secret, and {signing.public_file(path)} to verify with"
        )
    return signing.load_key(path)


def _files(wanted: Path | None) -> tuple[Path, Path] | None:
    """The signed file and the page. Raises before anything is made."""
    if wanted is None:
        return None
    if wanted.suffix not in (".json", ".html"):
        raise InvalidValue("--output", str(wanted), "must end in .json or .html: both are written")
    files = wanted.with_suffix(".json"), wanted.with_suffix(".html")
    for each in files:
        if each.exists():
            raise Refused(f"{each} is there already and is not overwritten", hint="name another file")
    if not wanted.parent.is_dir():
        raise InvalidValue("--output", str(wanted), "is in a directory that does not exist")
    return files


def _write(output: Output, statement: dict[str, Any], files: tuple[Path, Path] | None, key: Ed25519PrivateKey) -> None:
    from lapse.app import signing
    from lapse.app.certificate_page import page

    text = signing.signed(statement, key)
    if files is None:
        output.raw(text)
        return
    signed, readable = files
    public = key.public_key().public_bytes_raw().hex()
    signed.write_text(text, encoding="ascii", newline="\n")
    readable.write_text(page(statement, signed.name, public), encoding="utf-8")
    output.line(f"Wrote {signed}, and {readable} for reading and printing.")
