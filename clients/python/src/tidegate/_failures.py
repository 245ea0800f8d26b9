"""Recognises failed connections: the only exceptions that are retried by default.

A wider rule, such as every `OSError`, would also retry bugs and invalid settings: `FileNotFoundError`
and all exceptions of requests are an `OSError`. So exceptions of httpx and requests are recognised by
their types, and those of other clients by the built-in exception that they are or were raised from.
An exception that is raised without `from` while another is handled may be a bug in the handler.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Iterator
from typing import Any

import httpx

# The request cannot be sent, now or later.
_INVALID_REQUEST = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
# `asyncio.TimeoutError` is `TimeoutError` since Python 3.11.
_FAILED = (ConnectionError, TimeoutError, asyncio.TimeoutError, socket.gaierror)
# An `OSError` of these is not a `ConnectionError`.
_UNREACHABLE = frozenset([errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN])
# Causes can form a circle. Libraries nest a few.
_MAX_CAUSES = 16


def is_failed_connection(error: BaseException) -> bool:
    """Returns whether the connection failed or timed out."""
    return any(_is_failed(cause) for cause in causes(error))


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields the exception, and those that it was raised from."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def _is_failed(error: BaseException) -> bool:
    if isinstance(error, httpx.TransportError):
        return not isinstance(error, _INVALID_REQUEST)
    # requests is an optional dependency: its exceptions exist only if it was imported.
    requests: Any = sys.modules.get("requests.exceptions")
    if requests and isinstance(error, (requests.ConnectionError, requests.Timeout, requests.ChunkedEncodingError)):
        return True
    return isinstance(error, _FAILED) or (isinstance(error, OSError) and error.errno in _UNREACHABLE)
