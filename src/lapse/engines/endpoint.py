"""How a client reaches a server, as text: what tells a server from a copy of it that runs somewhere else."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from sqlalchemy import URL


def endpoint_of(url: URL) -> str:
    """Host, port and database. A loopback address or a socket means another server on every machine."""
    hosts = [url.host] if url.host else _texts(url, "host")
    ports = [str(url.port)] if url.port else _texts(url, "port")
    local = all(_is_local(host) for host in hosts)
    return "/".join((",".join(hosts), ",".join(ports), url.database or "", socket.gethostname() if local else ""))


def _texts(url: URL, name: str) -> list[str]:
    found = url.query.get(name, ())
    return [found] if isinstance(found, str) else list(found)


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if host.count(":") == 1 else host
    if not name or name.startswith("/") or name.lower() == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
