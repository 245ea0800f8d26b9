"""The FastAPI example, with and without a tidegate server."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from fastapi_app import create_app  # noqa: E402

from tidegate import AsyncClient, Attributes, Client, OnFailure, Rejected, Unreachable, admit  # noqa: E402


def calls(
    url: str,
    requests: list[tuple[str, str]],
    on_failure: OnFailure = "allow",
    timeout: float = 10,
    headers: dict[bytes, bytes] | None = None,
) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        app = create_app(AsyncClient(url, timeout=timeout), on_failure)
        transport = httpx.ASGITransport(app=app, client=("203.0.113.9", 4711))
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://app") as http:
            return [await http.request(method, path, headers=headers) for method, path in requests]

    return asyncio.run(run())


def test_admits_requests_up_to_the_limit_then_denies(server_url: str) -> None:
    *allowed, denied = calls(server_url, [("GET", "/api/hello")] * 4)
    assert [response.json() for response in allowed] == [{"hello": "world"}] * 3
    assert [response.headers["ratelimit"].split(";t=")[0] for response in allowed] == [
        '"api";r=2',
        '"api";r=1',
        '"api";r=0',
    ]
    assert denied.status_code == 429
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.headers["ratelimit-policy"] == '"api";q=3;w=3600'
    assert 0 < int(denied.headers["retry-after"]) <= 3600
    assert denied.json()["violated-policies"] == ["api"]


def test_admits_requests_that_match_no_policy(server_url: str) -> None:
    [response] = calls(server_url, [("GET", "/docs")])
    assert response.status_code == 200
    assert "ratelimit" not in response.headers


@pytest.mark.parametrize("what", ["nobody", "silent"])
def test_fails_open_or_closed_as_configured(what: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if what == "silent" else 1
        url = f"http://127.0.0.1:{port}"
        [opened] = calls(url, [("GET", "/api/hello")], "allow", timeout=0.1)
        [closed] = calls(url, [("GET", "/api/hello")], "deny", timeout=0.1)
    assert opened.status_code == 200
    assert closed.status_code == 503
    assert closed.headers["retry-after"] == "1"
    assert closed.json()["type"].endswith("#temporary-reduced-capacity")


# Regression: the log said that tidegate does not answer, although it had rejected the check.
@pytest.mark.parametrize("on_failure", ["allow", "deny"])
def test_logs_an_error_of_tidegate_as_no_decision(
    server_url: str, on_failure: OnFailure, caplog: pytest.LogCaptureFixture
) -> None:
    [response] = calls(server_url, [("GET", "/jobs")], on_failure)
    assert response.status_code == (404 if on_failure == "allow" else 503)
    [message] = [record.getMessage() for record in caplog.records if record.name == "tidegate"]
    assert message.startswith(f"no decision by tidegate, on_failure is {on_failure}: answer from {server_url}/v1/check: 409 Conflict: ")


@pytest.mark.parametrize("path", ["/api/hello", "/api%2Fhello", "/%61pi/hello", "/api/hello?x", "/api/hello%3Fx", "//api/hello", "/API/hello"])
def test_counts_every_path_that_reaches_a_handler(server_url: str, path: str) -> None:
    [response] = calls(server_url, [("GET", path)], headers={b"x-api-key": path.encode()})
    assert response.status_code in (200, 404)
    assert response.status_code == 404 or "ratelimit" in response.headers


def test_refuses_requests_with_long_headers(server_url: str) -> None:
    [response] = calls(server_url, [("GET", "/api/hello")], "allow", headers={b"x-api-key": b"\xe9" * 15_000})
    assert response.status_code == 400
    assert response.json()["title"] == "Bad Request"


def test_admits_from_blocking_code(server_url: str) -> None:
    with Client(server_url, timeout=10) as client:
        here = Attributes(path="/api/x", client_ip="203.0.113.77")
        passages = [admit(client, here, "deny") for _ in range(4)]
    assert [passage.refusal is None for passage in passages] == [True, True, True, False]
    assert [len(passage.fields) for passage in passages] == [2, 2, 2, 0]
    with Client("http://127.0.0.1:1") as nobody:
        closed, opened = admit(nobody, Attributes(), "deny"), admit(nobody, Attributes(), "allow")
    assert closed.refusal is not None and closed.refusal.status == 503
    assert opened.refusal is None
    assert isinstance(opened.failure, Unreachable)


def test_applies_on_failure_when_the_policy_cannot_be_checked(server_url: str) -> None:
    with Client(server_url, timeout=10) as client:
        held = admit(client, Attributes(path="/jobs", client_ip="203.0.113.7"), "allow")
    assert held.refusal is None
    assert isinstance(held.failure, Rejected) and held.failure.problem.status == 409
