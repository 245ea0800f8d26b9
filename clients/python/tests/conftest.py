"""A real tidegate server and helpers for the tests."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tidegate import Client, Permit

CLIENTS = Path(__file__).parents[2]
TESTDATA = CLIENTS / "testdata"
START_TIMEOUT_S = 20.0
PATIENCE_S = 20.0
LOG = ["2 per 1h sliding-log"]


def somebody() -> str:
    """Returns a key that no other test uses."""
    return uuid.uuid4().hex


def ends_in_time(permit: Permit) -> bool:
    """Waits until a permit is lost. Returns whether it is."""
    ends = time.monotonic() + PATIENCE_S
    while not permit.lost and time.monotonic() < ends:
        time.sleep(0.01)
    return permit.lost


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _tidegate(tmp_path_factory, "http") as url:
        yield url


@pytest.fixture
def grpc_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gRPC port of a server, as a URL of http."""
    with _tidegate(tmp_path_factory, "grpc") as url:
        yield url


@contextlib.contextmanager
def _tidegate(tmp_path_factory: pytest.TempPathFactory, scheme: str) -> Iterator[str]:
    """Runs a server. Yields the address of its front for this scheme."""
    binary = os.environ.get("TIDEGATE_BIN", "")
    if not os.access(binary, os.X_OK):
        pytest.fail(f"TIDEGATE_BIN must name the tidegate binary (cargo build makes target/debug/tidegate); it is {binary!r}")
    log = tmp_path_factory.mktemp("server") / "log"
    command = [binary, "serve", "--config", str(TESTDATA / "tidegate.yaml"), "--http", "127.0.0.1:0"]
    with log.open("wb") as out:
        server = subprocess.Popen([*command, "--admin", "off", "--grpc", "127.0.0.1:0", "--resp", "off"], stdout=out, stderr=out)
    try:
        yield _address(server, log, scheme)
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def _address(server: subprocess.Popen[bytes], log: Path, scheme: str) -> str:
    ends = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends and server.poll() is None:
        if found := re.search(rf"{scheme}://(127\.0\.0\.1:\d+)\n", log.read_text()):
            return f"http://{found[1]}"
        time.sleep(0.02)
    pytest.fail(f"tidegate did not start: {log.read_text()}")


@pytest.fixture
def client(server_url: str) -> Iterator[Client]:
    with Client(server_url, timeout=10) as client:
        yield client


class Scripted:
    """An HTTP server that sends scripted responses in order and records the requests. Status 0 breaks the connection."""

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, str]]] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                scripted.requests.append((self.command, headers, body))
                status, fields = scripted.script.pop(0)
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in (fields | {"content-length": "0"}).items():
                    self.send_header(name, value)
                self.end_headers()

            do_GET = do_POST = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()
