"""Backoff, budget, pacing, and a request with its retries."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import requests

from tidegate import Backoff, Budget, Pacer, Retrier, retry, retry_async


@dataclass
class Reply:
    status_code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    history: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("retry_number", "wait_ms", "chance", "expect"),
    [
        (0, None, 0.0, 0.0),
        (0, None, 0.5, 0.05),
        (1, None, 0.5, 0.1),
        (2, None, 1.0, 0.4),
        (3, 2000, 0.5, 2.4),  # added to the requested wait
        (3, 0, 0.5, 0.4),
        (4, None, 0.5, None),  # no retries left
        (0, 60_000, 0.0, 60.0),
        (0, 60_001, 0.0, None),  # too long: not shortened
        (0, 86_400_000, 0.0, None),
    ],
)
def test_adds_jitter_to_the_requested_wait(retry_number: int, wait_ms: int | None, chance: float, expect: float | None) -> None:
    assert Backoff().delay(retry_number, wait_ms, lambda: chance) == pytest.approx(expect)


def test_caps_the_jitter() -> None:
    backoff = Backoff(retries=10_000, cap=10.0)
    assert backoff.delay(7, None, lambda: 1.0) == 10.0
    assert backoff.delay(9_999, None, lambda: 1.0) == 10.0


@pytest.mark.parametrize(
    "bad", [{"retries": -1}, {"base": -0.1}, {"cap": float("inf")}, {"max_wait": float("nan")}, {"deadline": -1}]
)
def test_names_invalid_settings(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(bad))} must be 0 or more"):
        Backoff(**bad)  # type: ignore[arg-type]


# Regression: `Retrier(3)` was an `AttributeError`, and the error of a string named no argument.
@pytest.mark.parametrize(
    ("kind", "bad", "message"),
    [
        (Backoff, {"max_wait": "20"}, "max_wait must be a number, not '20'"),
        (Backoff, {"retries": True}, "retries must be a number, not True"),
        (Backoff, {"base": None}, "base must be a number, not None"),
        (Backoff, {"deadline": "5"}, "deadline must be a number, not '5'"),
        (Budget, {"ratio": "0.2"}, "ratio must be a number, not '0.2'"),
        (Budget, {"reserve": None}, "reserve must be a number, not None"),
        (Retrier, {"backoff": 3}, "backoff must be a Backoff, such as Backoff(retries=3), not int"),
        (Retrier, {"budget": 0.1}, "budget must be a Budget, such as Budget(ratio=0.1), not float"),
    ],
)
def test_names_settings_of_another_type(kind: Callable[..., object], bad: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        kind(**bad)


def test_rejects_a_retrier_of_another_type() -> None:
    retrier: Any = Backoff()
    expected = r"^retrier must be a Retrier, such as Retrier\(Backoff\(retries=3\)\), not Backoff$"
    with pytest.raises(TypeError, match=expected):
        retry(lambda _: Reply(200), retrier=retrier)

    async def send(_: object) -> Reply:
        return Reply(200)

    with pytest.raises(TypeError, match=expected):
        asyncio.run(retry_async(send, retrier=retrier))


def test_bounds_retries_to_a_fraction_of_the_requests() -> None:
    budget = Budget(ratio=0.5, reserve=2)
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]
    budget.deposit()
    assert not budget.withdraw()
    budget.deposit()
    assert budget.withdraw()
    for _ in range(100):
        budget.deposit()
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]


def test_spaces_out_requests_when_little_remains() -> None:
    now = 100.0
    pacer = Pacer(max_pause=2.0, clock=lambda: now, chance=lambda: 0.0)
    assert pacer.pause("a") == 0
    pacer.observe("a", 500)
    assert [pacer.pause("a") for _ in range(3)] == [0.5, 1.0, 1.5]
    assert pacer.pause("b") == 0
    assert [pacer.pause("a") for _ in range(3)] == [2.0, 2.0, 2.0]
    now += 60
    assert pacer.pause("a") == 0
    pacer.observe("a", 86_400_000)
    assert pacer.pause("a") == 2.0
    pacer.observe("a", None)
    assert pacer.pause("a") == 0


def test_bounds_the_number_of_paced_servers() -> None:
    pacer = Pacer(max_pause=2.0, clock=lambda: 0.0, chance=lambda: 0.0)
    for number in range(5000):
        pacer.observe(str(number), 1000)
    assert len(pacer._origins) <= 1024
    assert pacer.pause("0") == 0
    assert pacer.pause("4999") == 1.0


REFUSED = Reply(429, {"Retry-After": "1"})
BUSY = Reply(503)
BUSY_UNTIL = Reply(503, {"Retry-After": "1"})
GONE = ConnectionResetError()
OK = Reply(200)


@pytest.mark.parametrize(
    ("method", "keys_honoured", "script", "tries"),
    [
        ("GET", False, [OK], 1),
        ("GET", False, [Reply(404)], 1),
        ("GET", False, [Reply(500)], 1),
        ("GET", False, [REFUSED, OK], 2),
        ("GET", False, [BUSY, GONE, REFUSED, OK], 4),
        ("GET", False, [REFUSED] * 9, 5),
        ("GET", False, [GONE] * 9, 5),
        ("GET", False, [Reply(429, {"Retry-After": "3155760000"}), OK], 1),
        ("GET", False, [Reply(429, {"Retry-After": "-1"}), OK], 2),
        ("POST", False, [REFUSED, OK], 2),
        ("POST", False, [BUSY_UNTIL, OK], 2),
        # The server processed the POST and redirected it.
        ("POST", False, [Reply(429, history=(303,)), OK], 1),
        ("POST", True, [Reply(429, history=(303,)), OK], 2),
        ("GET", False, [Reply(429, history=(303,)), OK], 2),
        ("POST", False, [BUSY, OK], 1),
        ("POST", False, [GONE, OK], 1),
        ("POST", True, [BUSY, GONE, OK], 3),
        ("patch", False, [BUSY, OK], 1),
        ("delete", False, [BUSY, OK], 2),
    ],
)
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_retries_by_method_status_and_key(kind: str, method: str, keys_honoured: bool, script: list[Reply | Exception], tries: int) -> None:
    keys, waits = [], []
    left = list(script)

    def send(headers: Mapping[str, str]) -> Reply:
        keys.append(headers.get("Idempotency-Key"))
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def send_async(headers: Mapping[str, str]) -> Reply:
        return send(headers)

    async def sleep_async(seconds: float) -> None:
        waits.append(seconds)

    retrier = Retrier(keys_honoured=keys_honoured)
    last = script[tries - 1]
    try:
        if kind == "threads":
            reply = retry(send, method=method, retrier=retrier, sleep=waits.append)
        else:
            reply = asyncio.run(retry_async(send_async, method=method, retrier=retrier, sleep=sleep_async))
        assert reply is last
    except ConnectionResetError:
        assert last is GONE
    assert len(keys) == tries
    # One key for all attempts, only for methods that are not idempotent.
    assert len(set(keys)) == 1
    assert (keys[0] is None) == (method.upper() not in ("POST", "PATCH"))
    delays = waits[1::2]
    asked = [1.0 if outcome in (REFUSED, BUSY_UNTIL) else 0.0 for outcome in script[: tries - 1]]
    for number, (delay, least) in enumerate(zip(delays, asked, strict=True)):
        assert least <= delay <= least + 0.1 * 2**number


# Nobody listens there.
NOBODY = "http://127.0.0.1:1/"


# Regression: only built-in exceptions were retried, which neither httpx nor requests raises.
@pytest.mark.parametrize("send", [lambda: httpx.get(NOBODY), lambda: requests.get(NOBODY, timeout=10)])
@pytest.mark.parametrize(("method", "tries"), [("GET", 4), ("POST", 1)])
def test_retries_failed_connections_of_http_clients(send: Callable[[], Any], method: str, tries: int) -> None:
    tried = 0

    def counted(_: Mapping[str, str]) -> Any:
        nonlocal tried
        tried += 1
        return send()

    with pytest.raises((httpx.ConnectError, requests.ConnectionError)):
        retry(counted, method=method, retrier=Retrier(Backoff(retries=3)), sleep=lambda _: None)
    assert tried == tries


class LibraryError(Exception):
    """An exception of a client that is not known."""


def raised(error: Exception, cause: Exception | None = None, context: Exception | None = None) -> Exception:
    """Returns the exception as it is after `raise error from cause`, or after a `raise` while another is handled."""
    error.__cause__, error.__context__ = cause, context or cause
    return error


def in_a_circle() -> Exception:
    first, second = LibraryError(), LibraryError()
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        TimeoutError(),
        asyncio.TimeoutError(),
        socket.gaierror(socket.EAI_AGAIN, "try again"),
        OSError(errno.ENETUNREACH, "unreachable"),
        raised(LibraryError(), cause=ConnectionResetError()),
        raised(LibraryError(), cause=raised(LibraryError(), cause=TimeoutError())),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("late"),
        httpx.RemoteProtocolError("disconnected"),
        raised(LibraryError(), cause=httpx.ConnectError("refused")),
        requests.ConnectionError(),
        requests.ReadTimeout(),
        requests.exceptions.ChunkedEncodingError(),
    ],
    ids=repr,
)
def test_recognises_failed_connections(error: Exception) -> None:
    assert tries_until(error) == 2


# Bugs, invalid settings and responses are not failed connections.
@pytest.mark.parametrize(
    "error",
    [
        TypeError(),
        KeyError(),
        LibraryError(),
        raised(TypeError(), context=ConnectionResetError()),  # a bug in a handler
        raised(FileNotFoundError(errno.ENOENT, "no certificate"), context=ConnectionResetError()),
        PermissionError(errno.EACCES, "denied"),
        ssl.SSLCertVerificationError(),
        raised(LibraryError(), cause=ValueError()),
        in_a_circle(),
        httpx.InvalidURL("no address"),
        httpx.UnsupportedProtocol("no scheme"),
        httpx.LocalProtocolError("a line break in a header"),
        raised(LibraryError(), cause=httpx.UnsupportedProtocol("no scheme")),
        requests.exceptions.InvalidURL(),
        requests.HTTPError(),
        requests.TooManyRedirects(),
    ],
    ids=repr,
)
def test_raises_other_exceptions_at_once(error: Exception) -> None:
    assert tries_until(error) == 1


def test_retries_the_given_failures_instead() -> None:
    assert tries_until(LibraryError(), failures=(LibraryError,)) == 2
    assert tries_until(ConnectionResetError(), failures=(LibraryError,)) == 1
    assert tries_until(ConnectionResetError(), failures=()) == 1


def tries_until(error: Exception, **options: Any) -> int:
    """Returns the number of attempts if the first one fails, which must be the same from asyncio."""
    tries = [0, 0]

    def send(_: Mapping[str, str]) -> Reply:
        tries[0] += 1
        if tries[0] == 1:
            raise error
        return OK

    async def send_async(_: Mapping[str, str]) -> Reply:
        tries[1] += 1
        if tries[1] == 1:
            raise error
        return OK

    async def sleep_async(_: float) -> None:
        pass

    runs: list[Callable[[], object]] = [
        lambda: retry(send, retrier=Retrier(), sleep=lambda _: None, **options),
        lambda: asyncio.run(retry_async(send_async, retrier=Retrier(), sleep=sleep_async, **options)),
    ]
    for run in runs:
        try:
            run()
        except Exception as last:
            assert last is error
    assert tries[0] == tries[1]
    return tries[0]


def test_stops_retrying_when_the_budget_is_spent() -> None:
    retrier = Retrier(budget=Budget(ratio=0.1, reserve=5))
    sent = 0

    def send(_: Mapping[str, str]) -> Reply:
        nonlocal sent
        sent += 1
        return BUSY

    for _ in range(1000):
        retry(send, retrier=retrier, sleep=lambda _: None)
    assert 1000 < sent <= 1000 + 5 + 100


def test_begins_no_retry_after_the_deadline() -> None:
    retrier = Retrier(Backoff(deadline=5))
    script = [Reply(429, {"Retry-After": "6"}), OK]
    assert retry(lambda _: script.pop(0), retrier=retrier, sleep=lambda _: None).status_code == 429


def test_delays_the_next_request_when_little_remains() -> None:
    low = Reply(200, {"RateLimit": '"api";r=0;t=30', "RateLimit-Policy": '"api";q=100;w=60'})
    waits: list[float] = []
    retrier = Retrier()
    for reply in (low, OK, OK):
        retry(lambda _, reply=reply: reply, retrier=retrier, sleep=waits.append)  # type: ignore[misc]
    first, paced, after = waits
    assert (first, after) == (0, 0)
    assert 0.4 < paced <= 1.0
