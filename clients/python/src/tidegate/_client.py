"""The two clients of a tidegate server.

They differ only in how they wait: `_wire` encodes requests and decodes answers. A denial
is a value, a failure an exception. Neither client retries, because a check usually delays
another request. A check with an `id` can be repeated safely.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType

import httpx

from . import _wire
from ._lease import Lease
from ._wire import MAX_ANSWER_BYTES, Attributes, Check, Grant, Raw
from .answers import Answer, Denied, Problem
from .errors import DeadlineExceeded, PermitLost, TidegateError, Unreachable

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_TIMEOUT_S = 1.0
# Sockets accept at most 2^31 ms, which is more than this and the longest wait of a check.
_MAX_TIMEOUT_S = 1_000_000


class Client:
    """A blocking client of a tidegate server. Threads may share it.

    `timeout`, in seconds, bounds each step of a call (connecting, sending, waiting for the
    answer) and the time until its last byte is read. The `max_wait_ms` of a check is added to it.
    `http` replaces the HTTP client, for TLS with a private certificate authority, proxies or
    retries. It is closed with this client.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        http: httpx.Client | None = None,
    ) -> None:
        self._url, self._headers, self._timeout = _settings(url, token, timeout)
        self._http = http or httpx.Client()

    def check(
        self,
        policy: str | None = None,
        key: str | None = None,
        *,
        attributes: Attributes | None = None,
        limits: Sequence[str] | None = None,
        cost: int | None = None,
        id: str | None = None,
        force: bool | None = None,
        max_wait_ms: int | None = None,
    ) -> Answer:
        """Checks a `key` under a `policy`, a request by its `attributes`, or a `key` under `limits`."""
        check = Check(policy, key, attributes, limits, cost, id, force, max_wait_ms)
        return _wire.answer(self._post("/v1/check", check.json(), _extra_s(max_wait_ms)))

    def check_batch(self, checks: Iterable[Check]) -> list[Answer | Problem]:
        """Sends up to 1,000 checks. Answers are in order; an `id` used before with another cost gets a `Problem`."""
        rows = _wire.rows(checks)
        return _wire.answers(self._post("/v1/check/batch", {"checks": rows}), len(rows))

    def permit(
        self,
        policy: str | None = None,
        key: str | None = None,
        *,
        attributes: Attributes | None = None,
        limits: Sequence[str] | None = None,
        cost: int | None = None,
        ttl_ms: int | None = None,
    ) -> Permit | Denied:
        """Acquires a permit under a concurrency limit. `Denied` is not a context manager, so it cannot be held."""
        body = _wire.permit_body(Check(policy, key, attributes, limits, cost), ttl_ms)
        sent = time.monotonic()
        grant = _wire.grant(self._post("/v1/permits", body))
        return grant if isinstance(grant, Denied) else Permit(self, grant, sent)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, path: str, body: object, extra_s: float = 0.0) -> Raw:
        return self._send("POST", path, body, extra_s)

    def _send(self, method: str, path: str, body: object = None, extra_s: float = 0.0) -> Raw:
        timeout = self._timeout + extra_s
        ends = time.monotonic() + timeout
        content = None if body is None else _wire.encode(body)
        try:
            with self._http.stream(
                method, self._url + path, content=content, headers=self._headers, timeout=timeout
            ) as response:
                read = bytearray()
                for chunk in response.iter_bytes():
                    read += chunk
                    _within_bounds(len(read), self._url + path)
                    if time.monotonic() > ends:
                        raise _timed_out(self._url + path, timeout)
                return _raw(response, self._url + path, read)
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _failure(error, self._url + path, timeout) from error
        except RuntimeError as error:
            raise _closed(error, self._url + path, self._http) from error


class AsyncClient:
    """A client of a tidegate server for asyncio.

    `timeout`, in seconds, bounds a whole call. The `max_wait_ms` of a check is added to it.
    `http` is as in `Client`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._url, self._headers, self._timeout = _settings(url, token, timeout)
        self._http = http or httpx.AsyncClient()

    async def check(
        self,
        policy: str | None = None,
        key: str | None = None,
        *,
        attributes: Attributes | None = None,
        limits: Sequence[str] | None = None,
        cost: int | None = None,
        id: str | None = None,
        force: bool | None = None,
        max_wait_ms: int | None = None,
    ) -> Answer:
        """Sends a check, as `Client.check` does."""
        check = Check(policy, key, attributes, limits, cost, id, force, max_wait_ms)
        return _wire.answer(await self._post("/v1/check", check.json(), _extra_s(max_wait_ms)))

    async def check_batch(self, checks: Iterable[Check]) -> list[Answer | Problem]:
        """Sends a batch, as `Client.check_batch` does."""
        rows = _wire.rows(checks)
        return _wire.answers(await self._post("/v1/check/batch", {"checks": rows}), len(rows))

    async def permit(
        self,
        policy: str | None = None,
        key: str | None = None,
        *,
        attributes: Attributes | None = None,
        limits: Sequence[str] | None = None,
        cost: int | None = None,
        ttl_ms: int | None = None,
    ) -> AsyncPermit | Denied:
        """Acquires a permit, as `Client.permit` does, to be held by `async with`."""
        body = _wire.permit_body(Check(policy, key, attributes, limits, cost), ttl_ms)
        sent = time.monotonic()
        grant = _wire.grant(await self._post("/v1/permits", body))
        return grant if isinstance(grant, Denied) else AsyncPermit(self, grant, sent)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _post(self, path: str, body: object, extra_s: float = 0.0) -> Raw:
        return await self._send("POST", path, body, extra_s)

    async def _send(self, method: str, path: str, body: object = None, extra_s: float = 0.0) -> Raw:
        timeout = self._timeout + extra_s
        content = None if body is None else _wire.encode(body)
        request = self._http.build_request(
            method, self._url + path, content=content, headers=self._headers, timeout=timeout
        )
        try:
            return await asyncio.wait_for(self._read(request, self._url + path), timeout)
        except (httpx.TransportError, httpx.DecodingError, TimeoutError, asyncio.TimeoutError) as error:
            raise _failure(error, self._url + path, timeout) from error
        except RuntimeError as error:
            raise _closed(error, self._url + path, self._http) from error

    async def _read(self, request: httpx.Request, url: str) -> Raw:
        response = await self._http.send(request, stream=True)
        try:
            read = bytearray()
            async for chunk in response.aiter_bytes():
                read += chunk
                _within_bounds(len(read), url)
            return _raw(response, url, read)
        finally:
            await response.aclose()


class Permit:
    """A held permit. A `with` block renews it in a thread, and gives it back at the end.

    If that fails, the lease expires. A second `with` block of the same permit raises `RuntimeError`
    while the first one runs, also in another thread, and `PermitLost` after it.
    """

    allowed = True

    def __init__(self, client: Client, grant: Grant, sent: float) -> None:
        self.id, self.answer = grant.id, grant.answer
        self._client, self._lease = client, Lease(grant.ttl_ms, sent)
        self._done = threading.Event()
        self._renewals: threading.Thread | None = None
        # Threads may enter blocks at the same time.
        self._entering = threading.Lock()

    @property
    def lost(self) -> bool:
        """Whether others may hold the permit: its lease has ended, or `release` was called. Check it during long work.

        The end of a block gives the permit back without setting it.
        """
        return self._lease.has_ended()

    def renew(self, ttl_ms: int | None = None) -> int:
        """Renews the lease and returns its length in milliseconds. Raises `PermitLost` if it has ended."""
        body = _wire.lease_body(ttl_ms) or None
        sent = time.monotonic()
        try:
            held_ms = _wire.renewed(self._client._send("PUT", f"/v1/permits/{self.id}", body))
        except PermitLost:
            self._lease.lost = True
            raise
        self._lease.start(held_ms, sent)
        return held_ms

    def release(self) -> None:
        """Gives the permit back and sets `lost`.

        Raises `PermitLost` if the lease had ended or the permit was given back before.
        """
        # Set before the request, because the server may act on it and the answer not arrive.
        self._lease.lost = True
        self._give_back()

    def _give_back(self) -> None:
        self._stop_renewing()
        _wire.released(self._client._send("DELETE", f"/v1/permits/{self.id}"))

    def __enter__(self) -> Permit:
        with self._entering:
            in_block = self._renewals is not None
            _wire.require_enterable(released=self._done.is_set(), lost=self.lost, in_block=in_block)
            renewals = threading.Thread(target=self._renew_until_done, name="tidegate-permit", daemon=True)
            renewals.start()
            self._renewals = renewals
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._give_back()
        except TidegateError:
            pass

    def _stop_renewing(self) -> None:
        self._done.set()
        if self._renewals is not None:
            # Waits for a renewal in progress, which would otherwise follow the release.
            self._renewals.join()

    def _renew_until_done(self) -> None:
        wait_s = self._lease.wait_s()
        while wait_s is not None and not self._done.wait(wait_s):
            try:
                self.renew()
                wait_s = self._lease.wait_s()
            except PermitLost:
                return
            except TidegateError:
                wait_s = self._lease.wait_after_failure_s()


class AsyncPermit:
    """A held permit. An `async with` block renews it in a task, and gives it back at the end.

    If that fails, the lease expires. A second block of the same permit raises `RuntimeError` while
    the first one runs, also in another task, and `PermitLost` after it.
    """

    allowed = True

    def __init__(self, client: AsyncClient, grant: Grant, sent: float) -> None:
        self.id, self.answer = grant.id, grant.answer
        self._client, self._lease = client, Lease(grant.ttl_ms, sent)
        self._renewals: asyncio.Task[None] | None = None
        self._released = False

    @property
    def lost(self) -> bool:
        """Whether others may hold the permit, as `Permit.lost`."""
        return self._lease.has_ended()

    async def renew(self, ttl_ms: int | None = None) -> int:
        """Renews the lease, as `Permit.renew` does."""
        body = _wire.lease_body(ttl_ms) or None
        sent = time.monotonic()
        try:
            held_ms = _wire.renewed(await self._client._send("PUT", f"/v1/permits/{self.id}", body))
        except PermitLost:
            self._lease.lost = True
            raise
        self._lease.start(held_ms, sent)
        return held_ms

    async def release(self) -> None:
        """Gives the permit back and sets `lost`, as `Permit.release` does."""
        self._lease.lost = True
        await self._give_back()

    async def _give_back(self) -> None:
        # Before Python 3.12, `asyncio.wait_for` loses a cancellation that arrives together with the
        # answer. The renewals then end by this.
        self._released = True
        if self._renewals is not None:
            self._renewals.cancel()
            await asyncio.wait([self._renewals])
        _wire.released(await self._client._send("DELETE", f"/v1/permits/{self.id}"))

    async def __aenter__(self) -> AsyncPermit:
        in_block = self._renewals is not None
        _wire.require_enterable(released=self._released, lost=self.lost, in_block=in_block)
        self._renewals = asyncio.create_task(self._renew_until_done())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._give_back()
        except TidegateError:
            pass

    async def _renew_until_done(self) -> None:
        wait_s = self._lease.wait_s()
        while wait_s is not None and not self._released:
            await asyncio.sleep(wait_s)
            try:
                await self.renew()
                wait_s = self._lease.wait_s()
            except PermitLost:
                return
            except TidegateError:
                wait_s = self._lease.wait_after_failure_s()


def _settings(url: str, token: str | None, timeout: float) -> tuple[str, dict[str, str], float]:
    if not isinstance(url, str):
        raise TypeError(f"url must be a string, not {type(url).__name__}")
    # The paths of the API are appended. The message does not show the query, which may have a secret.
    if "?" in url or "#" in url:
        raise ValueError("url must not have a query or a fragment")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must start with http:// or https://, not {_shown(url)!r}")
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
    if not 0 < timeout <= _MAX_TIMEOUT_S:
        raise ValueError(f"timeout must be more than 0 and at most {_MAX_TIMEOUT_S} seconds, not {timeout!r}")
    headers = {"content-type": "application/json"}
    if token is not None:
        # A message ends up in logs, so it does not show the token.
        if not isinstance(token, str):
            raise TypeError(f"token must be a string, not {type(token).__name__}")
        if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", token):
            raise ValueError(
                "token must not be empty and may have only printable ASCII characters, without a space at either end; "
                "if it was read from a file, remove the line break at its end"
            )
        headers["authorization"] = f"Bearer {token}"
    return url.rstrip("/"), headers, timeout


def _extra_s(max_wait_ms: int | None) -> float:
    """The time that a check may wait at the server, which is added to the timeout."""
    return (max_wait_ms or 0) / 1000


def _within_bounds(size: int, url: str) -> None:
    if size > MAX_ANSWER_BYTES:
        raise _wire.unexpected(_shown(url), f"longer than {MAX_ANSWER_BYTES} bytes")


def _raw(response: httpx.Response, url: str, body: bytearray) -> Raw:
    return Raw(_shown(url), response.status_code, response.headers.multi_items(), bytes(body))


def _closed(error: RuntimeError, url: str, http: httpx.Client | httpx.AsyncClient) -> Exception:
    """Use after `close` as a `TidegateError`, because a permit may outlive its client."""
    return Unreachable(_no_answer(url, "the client is closed")) if http.is_closed else error


def _failure(error: Exception, url: str, timeout: float) -> Unreachable:
    if isinstance(error, (httpx.TimeoutException, TimeoutError, asyncio.TimeoutError)):
        return _timed_out(url, timeout)
    return Unreachable(_no_answer(url, str(error) or type(error).__name__))


def _timed_out(url: str, timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(_no_answer(url, f"timed out after {timeout:g} s"))


def _no_answer(url: str, reason: str) -> str:
    return f"no answer from {_shown(url)}: {reason}"


def _shown(url: str) -> str:
    """The URL for an error message. Messages end up in logs, so credentials are left out."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
