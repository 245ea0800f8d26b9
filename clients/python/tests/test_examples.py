"""The FastAPI example, in front of a real tidegate server, and of none."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Literal

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from fastapi_app import create_app  # noqa: E402

from tidegate import AsyncClient  # noqa: E402


def calls(
    url: str, requests: list[tuple[str, str]], on_failure: Literal["allow", "deny"] = "allow", timeout: float = 10
) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        app = create_app(AsyncClient(url, timeout=timeout), on_failure)
        transport = httpx.ASGITransport(app=app, client=("203.0.113.9", 4711))
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://app") as http:
            return [await http.request(method, path) for method, path in requests]

    return asyncio.run(run())


def test_allowed_then_denied(server_url: str) -> None:
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


def test_what_no_policy_matches_goes_through(server_url: str) -> None:
    [response] = calls(server_url, [("GET", "/docs")])
    assert response.status_code == 200
    assert "ratelimit" not in response.headers


@pytest.mark.parametrize("what", ["nobody", "silent"])
def test_failing_open_and_closed(what: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if what == "silent" else 1
        url = f"http://127.0.0.1:{port}"
        [opened] = calls(url, [("GET", "/api/hello")], "allow", timeout=0.1)
        [closed] = calls(url, [("GET", "/api/hello")], "deny", timeout=0.1)
    assert opened.status_code == 200
    assert closed.status_code == 503
    assert closed.headers["retry-after"] == "1"
    assert closed.json()["type"].endswith("#temporary-reduced-capacity")
