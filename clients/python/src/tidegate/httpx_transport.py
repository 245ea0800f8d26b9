"""Retries for httpx, as a transport that wraps another.

    httpx.Client(transport=RetryTransport())
    httpx.AsyncClient(transport=AsyncRetryTransport())
"""

from __future__ import annotations

import asyncio
import time

import httpx

from ._failures import is_failed_connection
from ._retry import IDEMPOTENCY_KEY, Course, Retrier, checked_retrier
from .fields import advise

__all__ = ["AsyncRetryTransport", "RetryTransport"]

# The connection was not established, so the server has not received the request.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class RetryTransport(httpx.BaseTransport):
    """Sends requests through `inner` and retries them. Default `inner`: `httpx.HTTPTransport()`."""

    def __init__(self, retrier: Retrier | None = None, inner: httpx.BaseTransport | None = None) -> None:
        self.retrier = checked_retrier(retrier)
        self._inner = inner or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        course, origin = _begin(self.retrier, request), _origin(request)
        while True:
            time.sleep(self.retrier.pacer.pause(origin))
            try:
                response = self._inner.handle_request(request)
            except httpx.TransportError as error:
                delay = _after_failure(course, request, error)
                if delay is None:
                    raise
            else:
                delay = _after(self.retrier, course, request, response)
                if delay is None:
                    return response
                response.close()
            time.sleep(delay)

    def close(self) -> None:
        self._inner.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """Sends and retries requests of an `httpx.AsyncClient` under asyncio."""

    def __init__(self, retrier: Retrier | None = None, inner: httpx.AsyncBaseTransport | None = None) -> None:
        self.retrier = checked_retrier(retrier)
        self._inner = inner or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        course, origin = _begin(self.retrier, request), _origin(request)
        while True:
            await asyncio.sleep(self.retrier.pacer.pause(origin))
            try:
                response = await self._inner.handle_async_request(request)
            except httpx.TransportError as error:
                delay = _after_failure(course, request, error)
                if delay is None:
                    raise
            else:
                delay = _after(self.retrier, course, request, response)
                if delay is None:
                    return response
                await response.aclose()
            await asyncio.sleep(delay)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _begin(retrier: Retrier, request: httpx.Request) -> Course:
    course = retrier.begin(request.method, request.headers.get(IDEMPOTENCY_KEY))
    if course.key is not None:
        request.headers[IDEMPOTENCY_KEY] = course.key
    return course


def _origin(request: httpx.Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"


def _can_be_sent_again(request: httpx.Request) -> bool:
    """Returns whether the body can be sent twice. One from a generator or a file cannot."""
    return isinstance(request.stream, httpx.ByteStream)


def _after(retrier: Retrier, course: Course, request: httpx.Request, response: httpx.Response) -> float | None:
    fields = response.headers.multi_items()
    if response.status_code < 400:
        retrier.pacer.observe(_origin(request), advise(response.status_code, fields).pace_ms)
    return course.after(response.status_code, fields) if _can_be_sent_again(request) else None


def _after_failure(course: Course, request: httpx.Request, error: httpx.TransportError) -> float | None:
    if not is_failed_connection(error) or not _can_be_sent_again(request):
        return None
    return course.after_failure(was_sent=not isinstance(error, _NOT_SENT))
