"""A real server of S3's API: versitygw on a scratch folder, in which a bucket is a folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from tests.backends.mariadb import free_port
from tests.backends.s3_build import binary

START_SECONDS = 30.0
KEY, SECRET = "lapse-root", "s3cr3t-of-root"


class S3Server:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lapse-s3-"))
        self.port = free_port()
        for name in ("data", "accounts"):
            (self.folder / name).mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def bucket(self, name: str) -> Path:
        """The folder in which a bucket's objects are, made where there is none."""
        if not (self.folder / "data" / name).is_dir():
            import pyarrow.fs as fs

            system = fs.S3FileSystem(
                access_key=KEY,
                secret_key=SECRET,
                endpoint_override=f"127.0.0.1:{self.port}",
                scheme="http",
                region="us-east-1",
                allow_bucket_creation=True,
            )
            system.create_dir(name)
        return self.folder / "data" / name

    def url(self, path: str, *, key: str = KEY, secret: str = SECRET) -> str:
        options = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1&connect_timeout=2"
        return f"s3://{key}:{secret}@{path}?{options}"

    def add_account(self, key: str, secret: str) -> None:
        """One that may do nothing with any bucket."""
        command = [str(binary()), "admin", "--access", KEY, "--secret", SECRET]
        command += ["--endpoint-url", f"http://127.0.0.1:{self.port}", "create-user"]
        subprocess.run(
            [*command, "--access", key, "--secret", secret, "--role", "user"], check=True, capture_output=True
        )

    def start(self) -> None:
        command = [str(binary()), "--port", f"127.0.0.1:{self.port}", "--iam-dir", str(self.folder / "accounts")]
        command += ["posix", str(self.folder / "data")]
        if shutil.which("setpriv"):
            # A test process that is killed takes its server along.
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        environment = os.environ | {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET, "GOMAXPROCS": "2"}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.folder)
        self._wait_until_up()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_up(self) -> None:
        until = monotonic() + START_SECONDS
        while monotonic() < until and self._process is not None and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            sleep(0.05)
        raise RuntimeError(f"versitygw did not start:\n{(self.folder / 'log').read_text()[-4000:]}")
