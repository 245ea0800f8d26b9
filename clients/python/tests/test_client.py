"""Both clients against a real server, and against servers that are not tidegate. Permits: test_permits.py."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from conftest import LOG, ends_in_time, somebody

from tidegate import (
    AsyncClient,
    AsyncPermit,
    Attributes,
    Check,
    Client,
    DeadlineExceeded,
    Denied,
    OnFailure,
    Permit,
    PermitLost,
    Problem,
    Rejected,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
    admit,
    admit_async,
)


def test_checks_a_key_under_a_policy(client: Client) -> None:
    key = somebody()
    first = client.check("login", key)
    assert (first.allowed, first.policy, first.limit, first.remaining) == (True, "login", 2, 1)
    assert (first.retry_after_ms, first.decided, first.no_room) == (0, "exact", False)
    assert [(line.algorithm, line.window_ms) for line in first.limits] == [
        ("sliding-log", 3_600_000),
        ("sliding-window", 86_400_000),
    ]
    assert client.check("login", key, cost=0).remaining == 1
    assert client.check("login", key).allowed
    denied = client.check("login", key)
    assert not denied.allowed
    assert denied.retry_after_ms is not None and denied.retry_after_ms > 0
    assert client.check("login", key, cost=-1).allowed
    assert client.check("login", key).allowed


def test_checks_a_key_under_given_limits(client: Client) -> None:
    answer = client.check(key=somebody(), limits=LOG, cost=3)
    assert (answer.allowed, answer.policy, answer.retry_after_ms) == (False, None, None)


def test_answers_are_true_if_allowed(client: Client) -> None:
    """Regression: every answer was true, so `if client.check(...)` admitted every request."""
    assert client.check(key="truth", limits=["1 per 1h"])
    assert not client.check(key="truth", limits=["1 per 1h"])
    with client.permit(key="truth", limits=["1 concurrent lease 1m"]) as held:  # type: ignore[union-attr]
        assert held
        assert not client.permit(key="truth", limits=["1 concurrent lease 1m"])


def test_checks_a_request_by_its_attributes(client: Client) -> None:
    who = somebody()
    attributes = Attributes(method="GET", path="/api/x?y=1", client_ip="192.0.2.7", headers={"x-api-key": who})
    answer = client.check(attributes=attributes)
    assert (answer.policy, answer.remaining) == ("api", 2)
    assert [line.mode for line in answer.limits] == [None, "observe"]
    once = client.check(attributes=Attributes(domain="messaging", descriptors={"kind": "sms", "to": who}))
    again = client.check(attributes=Attributes(domain="messaging", descriptors=[{"kind": "sms"}, {"to": who}]))
    assert [(one.policy, one.allowed) for one in (once, again)] == [("messages", True), ("messages", False)]
    nothing = client.check(attributes=Attributes(path="/elsewhere"))
    assert (nothing.allowed, nothing.policy, nothing.limits) == (True, None, ())


def test_charges_an_id_once(client: Client) -> None:
    key = somebody()
    answers = [client.check("login", key, id="a") for _ in range(5)]
    assert [answer.remaining for answer in answers] == [1] * 5


def test_charges_a_forced_check_above_the_limit(client: Client) -> None:
    key = somebody()
    assert client.check("login", key, cost=5, force=True).allowed
    assert not client.check("login", key).allowed


def test_waits_at_the_server_instead_of_being_denied(server_url: str) -> None:
    key, limits = somebody(), ["1 per 300ms sliding-log"]
    with Client(server_url, timeout=10) as client:
        answers = [client.check(key=key, limits=limits, max_wait_ms=5000) for _ in range(3)]
    assert all(answer.allowed for answer in answers)


def test_answers_a_batch_in_order(client: Client) -> None:
    key = somebody()
    checks = [Check("login", key), Check(key=key, limits=LOG, cost=3), Check("login", key, id="a"), Check("login", key)]
    *answers, last = client.check_batch(checks)
    assert [not isinstance(answer, Problem) and answer.allowed for answer in answers] == [True, False, True]
    assert not isinstance(last, Problem) and not last.allowed
    [problem] = client.check_batch([Check("login", key, id="a", cost=2)])
    assert isinstance(problem, Problem) and problem.status == 409
    assert client.check_batch([]) == []


@pytest.mark.parametrize(
    ("call", "status", "field"),
    [
        (lambda c: c.check("nope", "a"), 404, "policy"),
        (lambda c: c.check("login", ""), 400, "key"),
        (lambda c: c.check(key="a", limits=["5 per 1 fortnight"]), 400, "limits[0]"),
        (lambda c: c.check_batch([Check("login", "a"), Check("login", "a", id="x" * 300)]), 400, "checks[1].id"),
        (lambda c: c.check("jobs", "a"), 409, "policy"),
        (lambda c: c.permit("login", "a"), 409, "policy"),
    ],
)
def test_raises_an_exception_that_names_the_field_for_bad_input(
    client: Client, server_url: str, call: Callable[[Client], object], status: int, field: str
) -> None:
    with pytest.raises(Rejected) as caught:
        call(client)
    assert (caught.value.problem.status, caught.value.problem.field) == (status, field)
    message = str(caught.value)
    assert message.startswith(f"answer from {server_url}/v1/") and message.endswith(f" (field {field})")


def test_async_client_checks_and_holds_permits(server_url: str) -> None:
    async def run() -> None:
        key, ttl_ms = somebody(), 1500
        async with AsyncClient(server_url, timeout=10) as client:
            answers = await asyncio.gather(*(client.check("login", key) for _ in range(5)))
            assert sorted(answer.allowed for answer in answers) == [False] * 3 + [True] * 2
            [first, second] = await client.check_batch([Check("login", key), Check("login", somebody())])
            assert not isinstance(first, Problem) and not first.allowed
            assert not isinstance(second, Problem) and second.allowed
            permit = await client.permit("jobs", key, ttl_ms=ttl_ms)
            assert isinstance(permit, AsyncPermit)
            async with permit:
                await asyncio.sleep(ttl_ms / 1000 * 1.7)
                assert isinstance(await client.permit("jobs", key), Denied)
            again = await client.permit("jobs", key)
            assert isinstance(again, AsyncPermit)
            assert await again.renew(20_000) == 20_000
            await again.release()
            with pytest.raises(PermitLost):
                await again.renew()
            assert again.lost
            with pytest.raises(Rejected):
                await client.check("nope", "a")

    asyncio.run(run())


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_raises_deadline_exceeded_without_an_answer_in_time(silent: str) -> None:
    expected = rf"^no answer from {silent}/v1/check: timed out after 0\.1 s$"
    with Client(silent, timeout=0.1) as client, pytest.raises(DeadlineExceeded, match=expected):
        client.check("login", "a")

    async def ask() -> None:
        async with AsyncClient(silent, timeout=0.1) as client:
            await client.check("login", "a")

    with pytest.raises(DeadlineExceeded, match=expected):
        asyncio.run(ask())


def test_adds_the_wait_of_a_check_to_the_timeout(silent: str) -> None:
    expected = r": timed out after 0\.3 s$"
    with Client(silent, timeout=0.1) as client, pytest.raises(DeadlineExceeded, match=expected):
        client.check("login", "a", max_wait_ms=200)

    async def ask() -> None:
        async with AsyncClient(silent, timeout=0.1) as client:
            await client.check("login", "a", max_wait_ms=200)

    with pytest.raises(DeadlineExceeded, match=expected):
        asyncio.run(ask())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://user:secret@127.0.0.1:1/"])
def test_unreachable_names_the_url_without_credentials(url: str) -> None:
    expected = r"^no answer from http://127\.0\.0\.1:1/v1/check: .*(refused|failed)"
    with Client(url) as client, pytest.raises(Unreachable, match=expected) as sync_error:
        client.check("login", "a")

    async def ask() -> None:
        async with AsyncClient(url) as client:
            await client.check("login", "a")

    with pytest.raises(Unreachable, match=expected) as async_error:
        asyncio.run(ask())
    assert "secret" not in str(sync_error.value) + str(async_error.value)


def test_a_closed_client_is_unreachable(server_url: str) -> None:
    client = Client(server_url, timeout=10)
    permit = client.permit("jobs", somebody(), ttl_ms=300)
    assert isinstance(permit, Permit)
    with permit:
        client.close()
        assert ends_in_time(permit)
    with pytest.raises(Unreachable, match=f"^no answer from {server_url}/v1/check: the client is closed$"):
        client.check("login", "a")

    async def ask() -> None:
        client = AsyncClient(server_url)
        await client.close()
        await client.check("login", "a")

    with pytest.raises(Unreachable, match=f"^no answer from {server_url}/v1/check: the client is closed$"):
        asyncio.run(ask())


ANSWER = {"allowed": True, "policy": None, "limit": 1, "remaining": 1, "retry_after_ms": 0, "reset_after_ms": 0}
WITH_SECRET = "http://user:secret@limiter"
SOUND = ANSWER | {"decided": "exact", "limits": []}


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, "<html>", "status 200 with a body that is not JSON"),
        (200, "[" * 100_000, "status 200 with a body that is not JSON"),
        (200, "[]", "expected a JSON object"),
        (200, json.dumps(ANSWER), "`decided` is missing from the answer"),
        (200, json.dumps(SOUND | {"allowed": "yes"}), "`allowed` of the answer is not of type bool"),
        (200, json.dumps(SOUND | {"remaining": True}), "`remaining` of the answer is not of type int"),
        (200, json.dumps(SOUND | {"limits": [1]}), "expected a JSON object"),
        (302, "", "unexpected status 302"),
        (502, "Bad Gateway", "status 502 without a problem document: Bad Gateway"),
        (404, "{}", "status 404 without a problem document: {}"),
        (502, "", "status 502 without a problem document"),
        (502, " \r\n", "status 502 without a problem document"),
        (502, "\r\n one \r\ntwo", "status 502 without a problem document: one"),
        (502, "a\x1b[31m\x00\u202eb\u2028c d\u00e9\U0001f600", "status 502 without a problem document: a\\u{1b}[31m\\u{0}\\u{202e}b\\u{2028}c dé😀"),
        (502, "😀" * 200, "status 502 without a problem document: " + "😀" * 200),
        (502, "😀" * 201, "status 502 without a problem document: " + "😀" * 200 + "..."),
    ],
)
def test_rejects_responses_that_are_not_from_tidegate(status: int, body: str, message: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=body))
    expected = rf"^unexpected answer from http://limiter/v1/check: {re.escape(message)}$"
    with Client(WITH_SECRET, http=httpx.Client(transport=transport)) as client:
        with pytest.raises(UnexpectedAnswer, match=expected):
            client.check("login", "a")


@pytest.mark.parametrize("kind", ["text/html", "application/json", "", None, "text/plainer"])
def test_shows_only_plain_text(kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    transport = httpx.MockTransport(lambda _: httpx.Response(400, headers=headers, content=b"<html>"))
    with Client(WITH_SECRET, http=httpx.Client(transport=transport)) as client:
        with pytest.raises(UnexpectedAnswer, match="status 400 without a problem document$"):
            client.check("login", "a")


def test_shows_text_that_is_not_utf_8() -> None:
    headers = {"content-type": "Text/Plain ; charset=latin-1"}
    transport = httpx.MockTransport(lambda _: httpx.Response(400, headers=headers, content=b"caf\xe9"))
    with Client(WITH_SECRET, http=httpx.Client(transport=transport)) as client:
        with pytest.raises(UnexpectedAnswer, match="status 400 without a problem document: caf\ufffd$"):
            client.check("login", "a")


# Regression: the message did not have the answer of the gRPC port, which names the mistake.
def test_shows_the_answer_of_the_grpc_port(grpc_url: str) -> None:
    with Client(grpc_url, timeout=10) as client:
        with pytest.raises(UnexpectedAnswer, match="document: this is the gRPC port of tidegate, .* the port of --http$"):
            client.check("login", "a")


def test_rejects_an_answer_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate._client.MAX_ANSWER_BYTES", 10)
    expected = r"^unexpected answer from http://limiter/v1/check: longer than 10 bytes$"
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=SOUND))
    with Client(WITH_SECRET, http=httpx.Client(transport=transport)) as client:
        with pytest.raises(UnexpectedAnswer, match=expected):
            client.check("login", "a")

    async def ask() -> None:
        async with AsyncClient(WITH_SECRET, http=httpx.AsyncClient(transport=transport)) as client:
            await client.check("login", "a")

    with pytest.raises(UnexpectedAnswer, match=expected):
        asyncio.run(ask())


def test_ignores_unknown_fields() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=SOUND | {"new": 1}))
    with Client(http=httpx.Client(transport=transport)) as client:
        assert client.check("login", "a").allowed


def test_raises_unavailable_for_a_permit_if_the_store_is_unavailable() -> None:
    problem = {"type": "about:blank", "title": "t", "status": 503, "detail": "d"}
    transport = httpx.MockTransport(lambda _: httpx.Response(503, json=problem))
    with Client(WITH_SECRET, http=httpx.Client(transport=transport)) as client:
        with pytest.raises(Unavailable, match=r"^answer from http://limiter/v1/permits: 503 t: d$"):
            client.permit("jobs", "a")


def test_sends_the_token() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json=SOUND)

    with Client("http://limiter/", token="s3 cret", http=httpx.Client(transport=httpx.MockTransport(answer))) as client:
        client.check("login", "a")
    assert seen == ["Bearer s3 cret"]


# Regression: `admit` accepted only attributes, so it could not wait or name a policy.
def test_admits_by_a_check(client: Client, server_url: str) -> None:
    check = Check(key=somebody(), limits=["1 per 300ms sliding-log"], max_wait_ms=5000)
    for _ in range(2):
        assert admit(client, check, "deny").refusal is None

    async def ask() -> None:
        async with AsyncClient(server_url, timeout=10) as client:
            login = Check("login", somebody(), cost=2)
            assert (await admit_async(client, login, "deny")).refusal is None
            passage = await admit_async(client, login, "deny")
            assert passage.refusal is not None and passage.refusal.status == 429

    asyncio.run(ask())
    check = Check("nope", "a")
    assert isinstance(admit(client, check, "allow").failure, Rejected)
    wrong: Any = "login"
    with pytest.raises(TypeError, match=r"^check must be Attributes or a Check, such as .*, not str$"):
        admit(client, wrong, "allow")


@pytest.mark.parametrize("value", ["maybe", "Deny", "", None, True, ["deny"]])
def test_rejects_a_misspelt_on_failure_before_anything_fails(value: OnFailure) -> None:
    expected = rf'^on_failure must be "allow" or "deny", not {re.escape(repr(value))}$'
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=SOUND))
    with Client(http=httpx.Client(transport=transport)) as client, pytest.raises(ValueError, match=expected):
        admit(client, Attributes(path="/"), value)

    async def ask() -> None:
        async with AsyncClient(http=httpx.AsyncClient(transport=transport)) as client:
            await admit_async(client, Attributes(path="/"), value)

    with pytest.raises(ValueError, match=expected):
        asyncio.run(ask())


@pytest.mark.parametrize("call", [Client.check, Client.permit])
def test_rejects_limits_that_are_a_string(call: Callable[..., object]) -> None:
    expected = r"^limits must be a list of strings, such as \['5 per 1m'\], not a string$"
    with Client() as client, pytest.raises(TypeError, match=expected):
        call(client, key="a", limits="5 per 1m")


def test_rejects_unknown_fields() -> None:
    fields: Any = {"clientIp": "192.0.2.7"}
    check: Any = {"policy": "login", "key": "a"}
    with Client() as client:
        with pytest.raises(TypeError, match="unexpected keyword argument 'clientIp'"):
            Attributes(**fields)
        with pytest.raises(TypeError, match=r"^attributes must be Attributes, such as .*, not dict$"):
            client.check(attributes=fields)
        with pytest.raises(TypeError, match=r"^checks must be Check, such as .*, not dict$"):
            client.check_batch([check])


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"url": "localhost:8080"}, ValueError),
        ({"url": None}, TypeError),
        # Regression: the message contained the password.
        ({"url": "ftp://user:secret@localhost"}, ValueError),
        ({"url": "user:secret@localhost"}, ValueError),
        # Regression: the path was appended to the query, or was part of the fragment.
        ({"url": "http://localhost:8080/?token=secret"}, ValueError),
        ({"url": "http://localhost:8080#secret"}, ValueError),
        ({"url": "localhost:8080?key=secret"}, ValueError),
        ({"url": "http://localhost:8080/?"}, ValueError),
        ({"timeout": 0}, ValueError),
        ({"timeout": float("nan")}, ValueError),
        ({"timeout": float("inf")}, ValueError),
        ({"timeout": 1e10}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"timeout": None}, TypeError),
        ({"timeout": True}, TypeError),
        ({"token": b"secret"}, TypeError),
    ],
)
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_names_invalid_settings(client: Callable[..., object], bad: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{next(iter(bad))} must") as raised:
        client(**bad)
    assert "secret" not in str(raised.value)


NO_SUBJECT = "policy and key, attributes, or key and limits are required"


# Regression: these were sent. The server rejected them, so callers that fail open had no limit.
@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        ("check", {"policy": "login", "key": 42}, TypeError, "key must be a string, not int"),
        ("check", {"policy": "login", "key": b"a"}, TypeError, "key must be a string, not bytes"),
        ("check", {"policy": "login", "key": None}, TypeError, NO_SUBJECT),
        ("check", {"policy": 42, "key": "a"}, TypeError, "policy must be a string, not int"),
        ("check", {"key": "a"}, TypeError, NO_SUBJECT),
        ("check", {"limits": LOG}, TypeError, NO_SUBJECT),
        ("check", {"key": "a", "limits": 5}, TypeError, "limits must be a list of strings, not int"),
        ("check", {"key": "a", "limits": b"5 per 1m"}, TypeError, "limits must be a list of strings, not bytes"),
        ("check", {"key": "a", "limits": [5]}, TypeError, "limits must be a list of strings, but contains int"),
        ("check", {"policy": "login", "key": "a", "id": 7}, TypeError, "id must be a string, not int"),
        ("check", {"policy": "login", "key": "a", "force": "no"}, TypeError, "force must be True or False, not 'no'"),
        ("check", {"policy": "login", "key": "a", "cost": 10**13}, ValueError, "cost must be from -10**12 to 10**12, not 10**13"),
        ("check", {"policy": "login", "key": "a", "cost": -(10**12) - 1}, ValueError, "cost must be from -10**12 to 10**12, not"),
        ("check", {"policy": "login", "key": "a", "max_wait_ms": -5000}, ValueError, "max_wait_ms must be from 0 to 60000, not -5000"),
        ("check", {"policy": "login", "key": "a", "max_wait_ms": 10**15}, ValueError, "max_wait_ms must be from 0 to 60000, not"),
        ("permit", {"policy": "jobs", "key": 42}, TypeError, "key must be a string, not int"),
        ("permit", {"policy": "jobs", "key": "a", "cost": 10**13}, ValueError, "cost must be from -10**12 to 10**12, not 10**13"),
        ("permit", {"policy": "jobs", "key": "a", "cost": 0}, ValueError, "cost must be from 1 to 10**12, not 0"),
        ("permit", {"policy": "jobs", "key": "a", "ttl_ms": 0}, ValueError, "ttl_ms must be at least 1, not 0"),
    ],
)
def test_names_invalid_arguments_before_they_are_sent(
    server_url: str, method: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    expected = re.escape(message.replace("10**12", "1000000000000").replace("10**13", "10000000000000"))

    async def ask() -> None:
        async with AsyncClient(server_url) as client:
            await getattr(client, method)(**arguments)

    with Client(server_url) as client, pytest.raises(error, match=f"^{expected}"):
        getattr(client, method)(**arguments)
    with pytest.raises(error, match=f"^{expected}"):
        asyncio.run(ask())


def test_the_largest_numbers_are_sent(client: Client) -> None:
    assert not client.check(key=somebody(), limits=LOG, cost=10**12).allowed
    assert client.check(key=somebody(), limits=LOG, cost=-(10**12)).allowed
    assert client.check(key=somebody(), limits=LOG, max_wait_ms=60_000).allowed


# Regression: such a token was an unreachable server, so `admit` with "allow" never denied again.
# The message showed the token.
@pytest.mark.parametrize("token", ["", "supersecret\n", " supersecret", "s\u00e9cret"])
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_rejects_a_token_that_cannot_be_sent(client: Callable[..., object], token: str) -> None:
    with pytest.raises(ValueError, match="^token must") as raised:
        client(token=token)
    assert "cret" not in str(raised.value)


# Regression: the server answered that the body is not valid JSON, without the field.
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cost", lambda client, value: client.check("login", "a", cost=value)),
        ("max_wait_ms", lambda client, value: client.check("login", "a", max_wait_ms=value)),
        ("cost", lambda client, value: client.permit("jobs", "a", cost=value)),
        ("ttl_ms", lambda client, value: client.permit("jobs", "a", ttl_ms=value)),
    ],
)
def test_names_numbers_that_are_not_whole(name: str, call: Callable[[Client, object], object]) -> None:
    with Client() as client:
        for value in (float("nan"), float("inf"), 1.5, "1", True):
            with pytest.raises(TypeError, match=f"^{name} must be a whole number, not "):
                call(client, value)
