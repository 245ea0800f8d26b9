"""Retries that respect a limiter.

The naive approach, "on 429 sleep and try again", fails in four ways: clients that were
denied together retry together; a server that is down gets many times its load; a POST is
processed twice; and a header can make a process sleep for a year. Instead:

- the wait that the server requests is kept, with full jitter *added*, because clients that
  were denied together received the same time;
- a wait beyond `max_wait` ends the retries and is not shortened, because an early retry is
  denied again;
- a `Budget` that all requests share bounds retries to a fraction of the traffic;
- a method that is not idempotent carries a key, and is repeated only if the server did not
  process the request, or is known to honour keys;
- a `Pacer` slows down *before* the limit is reached, when little of it remains.

`Course` decides and does not wait, so that threads, asyncio, httpx and requests share the
same decisions.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ._failures import is_failed_connection
from .fields import advise

IDEMPOTENCY_KEY = "Idempotency-Key"
_IDEMPOTENT = frozenset(["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"])
# 2^30 times any sensible base exceeds every cap; a larger power could overflow.
_MAX_EXPONENT = 30
# The most servers that are paced. The one used least recently is evicted.
_MAX_ORIGINS = 1024


class Response(Protocol):
    """The part of a response that `retry` needs. Responses of httpx and requests have it."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


R = TypeVar("R", bound=Response)


def _require_number(name: str, value: object) -> None:
    # In Python `True` is an int.
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, not {value!r}")


@dataclass(frozen=True)
class Backoff:
    """The number of retries, and the waits before them. Times are in seconds."""

    retries: int = 4
    base: float = 0.1
    """The largest jitter before the first retry. It doubles with each retry."""
    cap: float = 10.0
    """The largest jitter before any retry."""
    max_wait: float = 60.0
    """The longest requested wait that is accepted. A longer one ends the retries."""
    max_pause: float = 1.0
    """The longest pause before a request when little of the limit remains."""
    deadline: float | None = None
    """The time after the first attempt after which no retry begins."""

    def __post_init__(self) -> None:
        for name in ("retries", "base", "cap", "max_wait", "max_pause"):
            _require_number(name, getattr(self, name))
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be 0 or more and finite, not {getattr(self, name)!r}")
        if self.deadline is not None:
            _require_number("deadline", self.deadline)
            if not self.deadline >= 0:
                raise ValueError(f"deadline must be 0 or more, or None, not {self.deadline!r}")

    def delay(
        self, retry: int, wait_ms: int | None = None, chance: Callable[[], float] = random.random
    ) -> float | None:
        """Returns the wait before retry number `retry`, counted from 0, or `None` to give up.

        `wait_ms` is the wait that the server requests, as `fields.advise` reads it.
        """
        requested = (wait_ms or 0) / 1000
        if retry >= self.retries or requested > self.max_wait:
            return None
        return requested + chance() * min(self.cap, self.base * 2.0 ** min(retry, _MAX_EXPONENT))


class Budget:
    """Bounds retries to a fraction of all requests, so that many callers do not amplify an outage.

    Every request adds `ratio`, every retry takes 1. The balance starts at `reserve` and never
    exceeds it, so that quiet times do not pay for many retries later.
    """

    def __init__(self, ratio: float = 0.2, reserve: float = 10.0) -> None:
        _require_number("ratio", ratio)
        _require_number("reserve", reserve)
        if not 0 <= ratio <= 1:
            raise ValueError(f"ratio must be between 0 and 1, not {ratio!r}")
        if not 1 <= reserve < float("inf"):
            raise ValueError(f"reserve must be 1 or more and finite, not {reserve!r}")
        self._ratio, self._reserve, self._left = ratio, reserve, reserve
        self._lock = threading.Lock()

    def deposit(self) -> None:
        """Records a request that is not a retry."""
        with self._lock:
            self._left = min(self._left + self._ratio, self._reserve)

    def withdraw(self) -> bool:
        """Pays for a retry. Returns whether the balance was sufficient."""
        with self._lock:
            allowed = self._left >= 1
            self._left -= allowed
            return allowed


class Pacer:
    """Spaces out requests to a server while little of its limit remains."""

    def __init__(
        self,
        max_pause: float,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._max_pause, self._clock, self._chance = max_pause, clock, chance
        # By origin: the gap between two requests, and the time of the next one.
        self._origins: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def pause(self, origin: str) -> float:
        """Returns the wait before a request that is to be sent now."""
        with self._lock:
            if origin not in self._origins:
                return 0.0
            gap, next_at = self._origins[origin]
            now = self._clock()
            # Concurrent callers are sent one gap apart, but none waits longer than the longest pause.
            starts = min(max(now, next_at), now + self._max_pause)
            self._origins[origin] = (gap, starts + gap)
            return starts - now

    def observe(self, origin: str, pace_ms: int | None) -> None:
        """Records the pause that a response requests."""
        with self._lock:
            if not pace_ms:
                self._origins.pop(origin, None)
                return
            gap = min(pace_ms / 1000, self._max_pause) * (1 - self._chance() / 2)
            _, next_at = self._origins.pop(origin, (0.0, 0.0))
            self._origins[origin] = (gap, max(next_at, self._clock() + gap))
            if len(self._origins) > _MAX_ORIGINS:
                self._origins.popitem(last=False)


@dataclass
class Retrier:
    """The state that the requests of a program share. Create one and use it for all of them."""

    backoff: Backoff = field(default_factory=Backoff)
    budget: Budget = field(default_factory=Budget)
    statuses: frozenset[int] = frozenset([408, 425, 429, 502, 503, 504])
    """The statuses that are retried."""
    keys_honoured: bool = False
    """Whether the server processes requests with the same `Idempotency-Key` once. A POST or PATCH is then
    repeated even if the first may have been processed."""
    pacer: Pacer = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.backoff, Backoff):
            raise TypeError(f"backoff must be a Backoff, such as Backoff(retries=3), not {type(self.backoff).__name__}")
        if not isinstance(self.budget, Budget):
            raise TypeError(f"budget must be a Budget, such as Budget(ratio=0.1), not {type(self.budget).__name__}")
        self.pacer = Pacer(self.backoff.max_pause)

    def begin(self, method: str, key: str | None = None) -> Course:
        """Begins a request. `key` is its idempotency key, if it has one already."""
        self.budget.deposit()
        return Course(self, method, key)


class Course:
    """One request and its retries. It decides; its caller waits."""

    def __init__(self, retrier: Retrier, method: str, key: str | None) -> None:
        idempotent = method.upper() in _IDEMPOTENT
        self._retrier = retrier
        # A caller that sets the key knows that the server honours it.
        self._repeatable = idempotent or key is not None or retrier.keys_honoured
        self.key = key if idempotent or key is not None else str(uuid.uuid4())
        self._retry = 0
        self._began = time.monotonic()

    def after(self, status: int, fields: Iterable[tuple[str, str]], *, redirected: bool = False) -> float | None:
        """Returns the wait before the request is sent again, or `None` if this response is the result.

        `redirected`: a server processed the request and redirected it, and this is the response after the redirect.
        """
        if status not in self._retrier.statuses:
            return None
        wait_ms = advise(status, fields).wait_ms
        # A limiter, or a server that sends a time to retry, did not process the request. A server that redirects did.
        refused = not redirected and (status == 429 or (status == 503 and wait_ms is not None))
        return self._next(wait_ms) if refused or self._repeatable else None

    def after_failure(self, *, was_sent: bool) -> float | None:
        """Returns the wait after a failure without a response. `was_sent`: the server may have received the request."""
        return self._next(None) if self._repeatable or not was_sent else None

    def _next(self, wait_ms: int | None) -> float | None:
        backoff = self._retrier.backoff
        delay = backoff.delay(self._retry, wait_ms)
        if delay is None:
            return None
        if backoff.deadline is not None and time.monotonic() - self._began + delay > backoff.deadline:
            return None
        if not self._retrier.budget.withdraw():
            return None
        self._retry += 1
        return delay


_SHARED = Retrier()


def checked_retrier(retrier: object, default: Callable[[], Retrier] = Retrier) -> Retrier:
    """Returns the given retrier or the default. Rejects another type, such as a `Backoff`, before the first request."""
    if retrier is None:
        return default()
    if not isinstance(retrier, Retrier):
        raise TypeError(f"retrier must be a Retrier, such as Retrier(Backoff(retries=3)), not {type(retrier).__name__}")
    return retrier


def retry(
    send: Callable[[Mapping[str, str]], R],
    *,
    method: str = "GET",
    origin: str = "",
    retrier: Retrier | None = None,
    failures: tuple[type[Exception], ...] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> R:
    """Calls `send` until its response is a success, or a failure that is not retried.

    `send` gets header fields to add to the request (the idempotency key of a method that is not
    idempotent). `failures` are the exceptions that are retried. Default: failed connections and
    timeouts of httpx and requests, and exceptions that are or were raised from a `ConnectionError`, a
    `TimeoutError` or a failed name lookup. After any of them, the server may have processed the
    request, so a method that is not idempotent is not repeated. `origin` identifies the server for
    pacing. Default `retrier`: one that the whole program shares.
    """
    retrier = checked_retrier(retrier, lambda: _SHARED)
    course = retrier.begin(method)
    headers = _key_header(course)
    while True:
        sleep(retrier.pacer.pause(origin))
        try:
            response = send(headers)
        except Exception as error:
            delay = _after_failure(course, error, failures)
            if delay is None:
                raise
        else:
            delay = _observed(retrier, course, origin, response)
            if delay is None:
                return response
        sleep(delay)


async def retry_async(
    send: Callable[[Mapping[str, str]], Awaitable[R]],
    *,
    method: str = "GET",
    origin: str = "",
    retrier: Retrier | None = None,
    failures: tuple[type[Exception], ...] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> R:
    """Calls and retries `send`, as `retry` does, from asyncio."""
    retrier = checked_retrier(retrier, lambda: _SHARED)
    course = retrier.begin(method)
    headers = _key_header(course)
    while True:
        await sleep(retrier.pacer.pause(origin))
        try:
            response = await send(headers)
        except Exception as error:
            delay = _after_failure(course, error, failures)
            if delay is None:
                raise
        else:
            delay = _observed(retrier, course, origin, response)
            if delay is None:
                return response
        await sleep(delay)


def _after_failure(course: Course, error: Exception, failures: tuple[type[Exception], ...] | None) -> float | None:
    is_retried = is_failed_connection(error) if failures is None else isinstance(error, failures)
    # `send` may have followed a redirect, so even a refused connection does not show that nothing was sent.
    return course.after_failure(was_sent=True) if is_retried else None


def _key_header(course: Course) -> dict[str, str]:
    return {} if course.key is None else {IDEMPOTENCY_KEY: course.key}


def _observed(retrier: Retrier, course: Course, origin: str, response: Response) -> float | None:
    fields = list(response.headers.items())
    if response.status_code < 400:
        retrier.pacer.observe(origin, advise(response.status_code, fields).pace_ms)
    # Responses of httpx and requests have the responses that redirected the request.
    redirected = bool(getattr(response, "history", ()))
    return course.after(response.status_code, fields, redirected=redirected)
