"""Retries that respect a limiter.

The naive way, "on 429 sleep and try again", breaks in four places: everybody who was
denied together comes back together; a server that is down gets many times its load;
a POST is done twice; and a header can make a process sleep for a year. So here

- the wait the server asks for is kept, with full jitter *on top*: those who were denied
  at once were told the same time;
- a wait beyond `max_wait` ends the retrying, it is not cut short: who comes early is denied;
- a `Budget` that all requests share lets retries be a fraction of the traffic, no more;
- a method that is not idempotent carries a key, and is sent again only when the server
  says that it did not take the request, unless it is known to honour keys;
- a `Pacer` slows down *before* the limit, when little of it remains.

`Course` decides and does not wait, so that every kind of caller (threads, asyncio, httpx,
requests) runs the same decisions.
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

from .fields import advise

IDEMPOTENCY_KEY = "Idempotency-Key"
_IDEMPOTENT = frozenset(["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"])
# 2^30 times any base is beyond every cap; a larger power would only overflow.
_MAX_EXPONENT = 30
# Servers one process talks to; the one used least recently is forgotten.
_MAX_ORIGINS = 1024


class Response(Protocol):
    """What `retry` has to know of a response; httpx and requests have it."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


R = TypeVar("R", bound=Response)


@dataclass(frozen=True)
class Backoff:
    """How long to wait before a retry, and how often to try. Times are in seconds."""

    retries: int = 4
    base: float = 0.1
    """The jitter before the first retry is between 0 and this; it doubles with each."""
    cap: float = 10.0
    """The most it doubles to."""
    max_wait: float = 60.0
    """A server that asks for longer is not asked again."""
    max_pause: float = 1.0
    """The longest pause before a request because little remains."""
    deadline: float | None = None
    """No retry begins later than so long after the first attempt."""

    def __post_init__(self) -> None:
        for name in ("retries", "base", "cap", "max_wait", "max_pause"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be 0 or more and finite, not {getattr(self, name)!r}")
        if self.deadline is not None and not self.deadline >= 0:
            raise ValueError(f"deadline must be 0 or more, or None, not {self.deadline!r}")

    def delay(
        self, retry: int, wait_ms: int | None = None, chance: Callable[[], float] = random.random
    ) -> float | None:
        """The wait before retry number `retry`, counted from 0; `None`: give up.

        `wait_ms` is what the server asked for, as `fields.advise` reads it.
        """
        asked = (wait_ms or 0) / 1000
        if retry >= self.retries or asked > self.max_wait:
            return None
        return asked + chance() * min(self.cap, self.base * 2.0 ** min(retry, _MAX_EXPONENT))


class Budget:
    """Retries as a part of all requests, so that many callers do not multiply an outage.

    Every request puts `ratio` in, every retry takes 1 out. It starts with `reserve`, and holds
    no more than that either, so that a quiet hour cannot be saved up for a storm.
    """

    def __init__(self, ratio: float = 0.2, reserve: float = 10.0) -> None:
        if not 0 <= ratio <= 1:
            raise ValueError(f"ratio must be between 0 and 1, not {ratio!r}")
        if not 1 <= reserve < float("inf"):
            raise ValueError(f"reserve must be 1 or more and finite, not {reserve!r}")
        self._ratio, self._reserve, self._left = ratio, reserve, reserve
        self._lock = threading.Lock()

    def deposit(self) -> None:
        """A request is made for the first time."""
        with self._lock:
            self._left = min(self._left + self._ratio, self._reserve)

    def withdraw(self) -> bool:
        """Whether it may be made again."""
        with self._lock:
            allowed = self._left >= 1
            self._left -= allowed
            return allowed


class Pacer:
    """Spaces requests to a server out while little of its limit remains."""

    def __init__(
        self,
        max_pause: float,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._max_pause, self._clock, self._chance = max_pause, clock, chance
        # By origin: the gap between two requests, and when the next may go.
        self._origins: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def pause(self, origin: str) -> float:
        """How long to wait before a request that is to be sent now."""
        with self._lock:
            if origin not in self._origins:
                return 0.0
            gap, next_at = self._origins[origin]
            now = self._clock()
            # Callers that come together are sent one gap apart, but none is held for longer than promised.
            starts = min(max(now, next_at), now + self._max_pause)
            self._origins[origin] = (gap, starts + gap)
            return starts - now

    def observe(self, origin: str, pace_ms: int | None) -> None:
        """What a response said."""
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
    """What the requests of a program share: make one, and use it for all of them."""

    backoff: Backoff = field(default_factory=Backoff)
    budget: Budget = field(default_factory=Budget)
    statuses: frozenset[int] = frozenset([408, 425, 429, 502, 503, 504])
    """Which are worth a retry."""
    keys_honoured: bool = False
    """Whether the server does a request with the same `Idempotency-Key` once: then a POST or PATCH is
    sent again also if nobody knows whether the first was taken."""
    pacer: Pacer = field(init=False)

    def __post_init__(self) -> None:
        self.pacer = Pacer(self.backoff.max_pause)

    def begin(self, method: str, key: str | None = None) -> Course:
        """A request with all its retries. `key` is the idempotency key it has already."""
        self.budget.deposit()
        return Course(self, method, key)


class Course:
    """One request through its retries. Decides, and leaves the waiting to its caller."""

    def __init__(self, retrier: Retrier, method: str, key: str | None) -> None:
        idempotent = method.upper() in _IDEMPOTENT
        self._retrier = retrier
        # Who sets a key himself knows that the server honours it.
        self._repeatable = idempotent or key is not None or retrier.keys_honoured
        self.key = key if idempotent or key is not None else str(uuid.uuid4())
        self._retry = 0
        self._began = time.monotonic()

    def after(self, status: int, fields: Iterable[tuple[str, str]]) -> float | None:
        """What to wait before the request is sent again; `None`: this response is the last."""
        if status not in self._retrier.statuses:
            return None
        wait_ms = advise(status, fields).wait_ms
        # A limiter, or a server that says when to come back, did not take the request.
        refused = status == 429 or (status == 503 and wait_ms is not None)
        return self._next(wait_ms) if refused or self._repeatable else None

    def after_failure(self, *, was_sent: bool) -> float | None:
        """The same if no response came. `was_sent`: the server may have seen the request."""
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


def retry(
    send: Callable[[Mapping[str, str]], R],
    *,
    method: str = "GET",
    origin: str = "",
    retrier: Retrier | None = None,
    failures: tuple[type[Exception], ...] = (ConnectionError, TimeoutError),
    sleep: Callable[[float], None] = time.sleep,
) -> R:
    """Calls `send` until its response is worth returning: a success, or a failure that no retry would mend.

    `send` gets header fields to add to the request (the idempotency key of a method that is not
    idempotent). `failures` are the exceptions after which it is called again. `origin` names the
    server, for its pace. Without a `retrier` one is shared by the whole program.
    """
    retrier = retrier or _SHARED
    course = retrier.begin(method)
    headers = _key_header(course)
    while True:
        sleep(retrier.pacer.pause(origin))
        try:
            response = send(headers)
        except failures:
            delay = course.after_failure(was_sent=True)
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
    failures: tuple[type[Exception], ...] = (ConnectionError, TimeoutError, asyncio.TimeoutError),
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> R:
    """The same for asyncio."""
    retrier = retrier or _SHARED
    course = retrier.begin(method)
    headers = _key_header(course)
    while True:
        await sleep(retrier.pacer.pause(origin))
        try:
            response = await send(headers)
        except failures:
            delay = course.after_failure(was_sent=True)
            if delay is None:
                raise
        else:
            delay = _observed(retrier, course, origin, response)
            if delay is None:
                return response
        await sleep(delay)


def _key_header(course: Course) -> dict[str, str]:
    return {} if course.key is None else {IDEMPOTENCY_KEY: course.key}


def _observed(retrier: Retrier, course: Course, origin: str, response: Response) -> float | None:
    fields = list(response.headers.items())
    if response.status_code < 400:
        retrier.pacer.observe(origin, advise(response.status_code, fields).pace_ms)
    return course.after(response.status_code, fields)
