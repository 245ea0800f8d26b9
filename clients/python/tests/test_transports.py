"""Retries through httpx and requests, against a server with scripted responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import requests
from conftest import Scripted

from tidegate import Backoff, Budget, Retrier
from tidegate.httpx_transport import AsyncRetryTransport, RetryTransport
from tidegate.requests_adapter import RetryAdapter

Send = Callable[[str, str, object], int]


def quick() -> Retrier:
    return Retrier(Backoff(base=0.001, max_wait=1))


def by_httpx(method: str, url: str, content: object) -> int:
    with httpx.Client(transport=RetryTransport(quick()), timeout=10, follow_redirects=True) as client:
        return client.request(method, url, content=content).status_code  # type: ignore[arg-type]


def by_async_httpx(method: str, url: str, content: object) -> int:
    async def send() -> int:
        body = _slowly(content) if isinstance(content, Iterator) else content
        transport = AsyncRetryTransport(quick())
        async with httpx.AsyncClient(transport=transport, timeout=10, follow_redirects=True) as client:
            return (await client.request(method, url, content=body)).status_code  # type: ignore[arg-type]

    return asyncio.run(send())


async def _slowly(parts: Iterator[bytes]):  # type: ignore[no-untyped-def]
    for part in parts:
        yield part


def by_requests(method: str, url: str, content: object) -> int:
    with requests.Session() as session:
        session.mount("http://", RetryAdapter(quick()))
        return session.request(method, url, data=content, timeout=10).status_code  # type: ignore[arg-type]


BOTH = pytest.mark.parametrize("send", [by_httpx, by_async_httpx, by_requests])
LATER = (429, {"Retry-After": "0"})


@BOTH
def test_waits_after_a_denial_and_sends_the_body_again(send: Send, scripted: Scripted) -> None:
    scripted.script = [LATER, (503, {"Retry-After": "0"}), (200, {})]
    assert send("POST", scripted.url, b"work") == 200
    assert [(method, body) for method, _, body in scripted.requests] == [("POST", b"work")] * 3
    keys = {headers.get("idempotency-key") for _, headers, _ in scripted.requests}
    assert len(keys) == 1 and None not in keys


@BOTH
def test_returns_the_denial_if_its_wait_is_too_long(send: Send, scripted: Scripted) -> None:
    scripted.script = [(429, {"Retry-After": "3155760000"})]
    assert send("GET", scripted.url, None) == 429
    assert "idempotency-key" not in scripted.requests[0][1]


@BOTH
def test_stops_after_the_last_retry(send: Send, scripted: Scripted) -> None:
    scripted.script = [(503, {})] * 9
    assert send("GET", scripted.url, None) == 503
    assert len(scripted.requests) == 5


@BOTH
def test_sends_a_body_from_a_generator_once(send: Send, scripted: Scripted) -> None:
    # The scripted server does not read chunks: it answers and closes the connection.
    scripted.script = [LATER]
    assert send("POST", scripted.url, iter([])) == 429
    assert len(scripted.requests) == 1


@BOTH
def test_raises_for_an_unreachable_server(send: Send) -> None:
    with pytest.raises((httpx.ConnectError, requests.ConnectionError)):
        send("GET", "http://127.0.0.1:1/", None)


# Regression: the adapter retried a POST only after a connection that was not established in time.
@BOTH
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_retries_refused_connections(send: Send, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(reserve=10)
    monkeypatch.setitem(globals(), "quick", lambda: Retrier(Backoff(retries=3, base=0.001), budget))
    with pytest.raises((httpx.ConnectError, requests.ConnectionError)):
        send(method, "http://127.0.0.1:1/", None)
    assert budget._left == 7


@BOTH
@pytest.mark.parametrize(("method", "tries"), [("GET", 2), ("POST", 1)])
def test_repeats_requests_that_may_have_been_processed_only_if_idempotent(
    send: Send, method: str, tries: int, scripted: Scripted
) -> None:
    scripted.script = [(0, {}), (200, {})]
    try:
        assert send(method, scripted.url, None) == 200
    except (httpx.RemoteProtocolError, requests.ConnectionError):
        assert tries == 1
    assert len(scripted.requests) == tries


# A redirect is a separate request to a transport, so a POST that was processed is not repeated.
@BOTH
def test_does_not_repeat_a_post_if_its_redirect_fails(send: Send, scripted: Scripted) -> None:
    scripted.script = [(303, {"Location": "http://127.0.0.1:1/"})] * 2
    with pytest.raises((httpx.ConnectError, requests.ConnectionError)):
        send("POST", scripted.url, b"work")
    assert len(scripted.requests) == 1


def test_keeps_the_callers_key(scripted: Scripted) -> None:
    scripted.script = [(502, {}), (200, {})]
    with httpx.Client(transport=RetryTransport(quick())) as client:
        assert client.post(scripted.url, headers={"Idempotency-Key": "mine"}).status_code == 200
    assert [headers["idempotency-key"] for _, headers, _ in scripted.requests] == ["mine", "mine"]


# Regression: they were accepted, and the first request failed with an `AttributeError`.
@pytest.mark.parametrize("create", [RetryTransport, AsyncRetryTransport, RetryAdapter])
@pytest.mark.parametrize("value", [Backoff(), {"retries": 1}, 0])
def test_rejects_a_retrier_of_another_type_when_it_is_given(create: Callable[[Any], object], value: object) -> None:
    with pytest.raises(TypeError, match=rf"^retrier must be a Retrier, such as Retrier\(.*\), not {type(value).__name__}$"):
        create(value)
