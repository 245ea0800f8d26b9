"""Retries for requests, as an adapter. Requires the extra: `pip install CLONE/clients/python[requests]`.

    session = requests.Session()
    session.mount("https://", RetryAdapter())
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import NewConnectionError

from ._retry import IDEMPOTENCY_KEY, Course, Retrier, _observed, checked_retrier

__all__ = ["RetryAdapter"]

_Timeout = None | float | tuple[float, float] | tuple[float, None]
_Cert = None | bytes | str | tuple[bytes | str, bytes | str]


class RetryAdapter(HTTPAdapter):
    """Sends and retries requests. Takes the arguments of `HTTPAdapter` except `max_retries`."""

    def __init__(self, retrier: Retrier | None = None, pool_connections: int = 10, pool_maxsize: int = 10) -> None:
        super().__init__(pool_connections=pool_connections, pool_maxsize=pool_maxsize, max_retries=0)
        self.retrier = checked_retrier(retrier)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: _Timeout = None,
        verify: bool | str = True,
        cert: _Cert = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        course, origin = _begin(self.retrier, request), _origin(request)
        # A body from a generator or a file cannot be sent twice.
        again = request.body is None or isinstance(request.body, (bytes, str))
        while True:
            time.sleep(self.retrier.pacer.pause(origin))
            try:
                response = super().send(request, stream, timeout, verify, cert, proxies)
            except (requests.ConnectionError, requests.Timeout) as error:
                delay = course.after_failure(was_sent=_was_sent(error)) if again else None
                if delay is None:
                    raise
            else:
                delay = _observed(self.retrier, course, origin, response)
                if delay is None or not again:
                    return response
                response.close()
            time.sleep(delay)


def _was_sent(error: requests.RequestException) -> bool:
    """Returns whether the server may have received the request."""
    # The reason is that of the exception of urllib3, which requests passes on as the argument.
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return not isinstance(error, requests.ConnectTimeout) and not isinstance(reason, NewConnectionError)


def _begin(retrier: Retrier, request: requests.PreparedRequest) -> Course:
    course = retrier.begin(request.method or "GET", request.headers.get(IDEMPOTENCY_KEY))
    if course.key is not None:
        request.headers[IDEMPOTENCY_KEY] = course.key
    return course


def _origin(request: requests.PreparedRequest) -> str:
    parts = urlsplit(request.url or "")
    return f"{parts.scheme}://{parts.netloc}"
