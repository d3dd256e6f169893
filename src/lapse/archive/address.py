"""Which destination a URL means. What it says of itself holds no secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from urllib.parse import parse_qsl, unquote, urlsplit

from lapse.errors import InvalidValue, UnsupportedUrl

FILE, S3, GS, AZ = "file", "s3", "gs", "az"
SECRET_OPTIONS = ("access_key", "secret_key", "session_token", "account_key", "sas_token")
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    FILE: (),
    S3: (
        "region",
        "endpoint_override",
        "scheme",
        "anonymous",
        "role_arn",
        "access_key",
        "secret_key",
        "session_token",
        "force_virtual_addressing",
        "connect_timeout",
        "request_timeout",
    ),
    GS: ("endpoint_override", "scheme", "anonymous", "project_id"),
    AZ: (
        "account_name",
        "account_key",
        "sas_token",
        "blob_storage_authority",
        "blob_storage_scheme",
        "dfs_storage_authority",
        "dfs_storage_scheme",
    ),
}
_SHOWN = ("region", "endpoint_override", "account_name")
"""Options that are part of where a destination is."""
_FORMS = "write file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix?account_name=NAME"


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """`path` is the folder, or bucket and prefix, as pyarrow's file systems take it. `options` may hold secrets."""

    scheme: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return self.at("")

    def at(self, path: str) -> str:
        """A file of the archive, to be shown."""
        shown = "&".join(f"{name}={self.options[name]}" for name in _SHOWN if name in self.options)
        inside = f"/{path}" if path else ""
        return f"{self.scheme}://{self.path}{inside}" + (f"?{shown}" if shown else "")

    @property
    def is_local(self) -> bool:
        return self.scheme == FILE

    def scrub(self, text: str) -> str:
        """A text of another's, without the secrets of this address."""
        for name in SECRET_OPTIONS:
            if secret := self.options.get(name):
                text = text.replace(secret, "***")
        return text


def is_archive_url(text: str) -> bool:
    return text.partition("://")[0] in _OPTIONS and "://" in text


def parse(text: str, **options: str | float) -> Address:
    """`options` are added to those of the URL, so that secrets need not be in it."""
    try:
        parts = urlsplit(text)
        host = parts.hostname if parts.scheme == FILE else parts.netloc.rpartition("@")[2]
    except ValueError as error:
        raise UnsupportedUrl("this is not a URL", hint=_FORMS) from error
    if parts.scheme not in _OPTIONS:
        raise UnsupportedUrl(f"an archive cannot be at {parts.scheme or 'a path'}:", hint=_FORMS)
    if parts.fragment:
        raise UnsupportedUrl("the URL of an archive has no #fragment", hint="write %23 for # in a name")
    path = _local(host, parts.path) if parts.scheme == FILE else _remote(parts.scheme, host or "", parts.path)
    found = _credentials(parts.scheme, parts.username, parts.password)
    found |= _query(parts.query)
    found |= {name: _text(value) for name, value in options.items()}
    _check(parts.scheme, found)
    return Address(scheme=parts.scheme, path=path, options=MappingProxyType(found))


def _local(host: str | None, path: str) -> str:
    folder = PurePosixPath(unquote(path))
    if host not in (None, "", "localhost") or not folder.is_absolute() or str(folder) == "/":
        raise UnsupportedUrl("file: needs the absolute path of a folder", hint="write file:///folder")
    if ".." in folder.parts or "\0" in str(folder):
        raise UnsupportedUrl("file: needs a path without ..", hint="write file:///folder")
    return str(folder)


def _remote(scheme: str, bucket: str, path: str) -> str:
    if not bucket or ":" in bucket:
        hint = f"{_FORMS}; an S3-compatible server is named by ?endpoint_override=HOST:PORT&scheme=http"
        raise UnsupportedUrl(f"{scheme}:// needs the name of a bucket", hint=hint)
    names = [name for name in unquote(path).split("/") if name]
    if ".." in names or "." in names:
        raise UnsupportedUrl(f"{scheme}:// needs a prefix without . and ..", hint=_FORMS)
    return "/".join([bucket, *names])


def _credentials(scheme: str, user: str | None, password: str | None) -> dict[str, str]:
    if user is None and password is None:
        return {}
    if scheme != S3 or not user or not password:
        raise UnsupportedUrl(f"{scheme}:// takes no user name and password", hint="s3://KEY:SECRET@bucket/prefix does")
    return {"access_key": unquote(user), "secret_key": unquote(password)}


def _query(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True) if text else []
    except ValueError as error:
        raise UnsupportedUrl("the options of the URL cannot be read", hint="write ?name=value&name=value") from error
    if len({name for name, _ in pairs}) != len(pairs):
        raise UnsupportedUrl("an option of the URL is given twice", hint="write each option once")
    return dict(pairs)


def _text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(scheme: str, options: Mapping[str, str]) -> None:
    known = _OPTIONS[scheme]
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise UnsupportedUrl(f"{scheme}:// has no option {unknown!r}", hint=f"it has: {', '.join(known) or 'none'}")
    if scheme == AZ and "account_name" not in options:
        raise UnsupportedUrl("az:// needs ?account_name=", hint=_FORMS)
    for name in ("scheme", "blob_storage_scheme", "dfs_storage_scheme"):
        if options.get(name, "https") not in ("http", "https"):
            raise InvalidValue(name, options[name], "http or https")
    for name in ("anonymous", "force_virtual_addressing"):
        if options.get(name, "true") not in ("true", "false"):
            raise InvalidValue(name, options[name], "true or false")
    for name in ("connect_timeout", "request_timeout"):
        if name in options and not _is_positive(options[name]):
            raise InvalidValue(name, options[name], "a number of seconds above 0")


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
