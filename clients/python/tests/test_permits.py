"""Permits of both clients against a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import httpx
import pytest
from conftest import ends_in_time, somebody

from tidegate import AsyncClient, AsyncPermit, Client, Denied, Permit, PermitLost, Unreachable
from tidegate._lease import Lease
from tidegate._wire import Raw

AnyClient = Client | AsyncClient
AnyPermit = Permit | AsyncPermit
Scenario = Callable[[AnyClient], Awaitable[None]]


def test_holds_a_permit_and_gives_it_back(client: Client, server_url: str) -> None:
    key = somebody()
    permit = client.permit("jobs", key)
    assert isinstance(permit, Permit)
    with permit:
        denied = client.permit("jobs", key)
        assert isinstance(denied, Denied)
        assert not denied.allowed and denied.problem.violated_policies == ("jobs",)
        assert denied.retry_after_ms is not None and 0 < denied.retry_after_ms <= 60_000
        names = [name for name, _ in denied.fields]
        assert names == ["retry-after", "ratelimit", "ratelimit-policy"]
        assert not permit.lost
    again = client.permit("jobs", key, ttl_ms=20_000)
    assert isinstance(again, Permit)
    assert again.renew() == 20_000
    assert again.renew(30_000) == 30_000
    again.release()
    with pytest.raises(PermitLost, match=rf"^answer from {server_url}/v1/permits/{again.id}: 404 "):
        again.release()


def test_renews_a_permit_while_it_is_held(client: Client) -> None:
    key, ttl_ms = somebody(), 1500
    permit = client.permit("jobs", key, ttl_ms=ttl_ms)
    assert isinstance(permit, Permit)
    with permit:
        time.sleep(ttl_ms / 1000 * 1.7)
        assert isinstance(client.permit("jobs", key), Denied)
        assert not permit.lost


def test_reports_a_lost_permit(client: Client) -> None:
    permit = client.permit("jobs", somebody(), ttl_ms=600)
    assert isinstance(permit, Permit)
    with permit:
        client._send("DELETE", f"/v1/permits/{permit.id}")
        assert ends_in_time(permit)


@pytest.fixture(params=[Client, AsyncClient])
def run(request: pytest.FixtureRequest, server_url: str) -> Callable[[Scenario], None]:
    """Runs a scenario with each client. The functions below take the clients and permits of both kinds."""

    async def run(scenario: Scenario) -> None:
        if request.param is AsyncClient:
            async with AsyncClient(server_url, timeout=10) as async_client:
                await scenario(async_client)
        else:
            with Client(server_url, timeout=10) as client:
                await scenario(client)

    return lambda scenario: asyncio.run(run(scenario))


async def acquire(client: AnyClient, key: str, ttl_ms: int | None = None) -> AnyPermit | Denied:
    if isinstance(client, AsyncClient):
        return await client.permit("jobs", key, ttl_ms=ttl_ms)
    return client.permit("jobs", key, ttl_ms=ttl_ms)


async def hold(client: AnyClient, key: str, ttl_ms: int | None = None) -> AnyPermit:
    permit = await acquire(client, key, ttl_ms)
    assert not isinstance(permit, Denied)
    return permit


@asynccontextmanager
async def block(permit: AnyPermit) -> AsyncIterator[None]:
    if isinstance(permit, AsyncPermit):
        async with permit:
            yield
    else:
        with permit:
            yield


async def enter(permit: AnyPermit) -> None:
    async with block(permit):
        pytest.fail("held")


async def enter_elsewhere(permit: AnyPermit) -> None:
    """Enters a block in another task or thread."""
    if isinstance(permit, AsyncPermit):
        await asyncio.create_task(enter(permit))
    else:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(asyncio.run, enter(permit)).result()


async def leave_a_block(_: AnyClient, permit: AnyPermit) -> None:
    async with block(permit):
        pass


async def release(_: AnyClient, permit: AnyPermit) -> None:
    if isinstance(permit, AsyncPermit):
        await permit.release()
    else:
        permit.release()


async def lose(client: AnyClient, permit: AnyPermit) -> None:
    """Ends the lease at the server, and fails to renew it."""
    path = f"/v1/permits/{permit.id}"
    if isinstance(client, AsyncClient):
        await client._send("DELETE", path)
    else:
        client._send("DELETE", path)
    with pytest.raises(PermitLost, match="^answer from "):
        await permit.renew() if isinstance(permit, AsyncPermit) else permit.renew()


# Regression: the block ran without a permit, and `lost` was false.
@pytest.mark.parametrize(
    ("end", "reason"),
    [(leave_a_block, "was given back"), (release, "was given back"), (lose, "has ended")],
)
def test_a_permit_cannot_be_held_again(
    run: Callable[[Scenario], None], end: Callable[[AnyClient, AnyPermit], Awaitable[None]], reason: str
) -> None:
    async def scenario(client: AnyClient) -> None:
        permit = await hold(client, somebody())
        await end(client, permit)
        with pytest.raises(PermitLost, match=f"^the (lease of the )?permit {reason}$") as raised:
            await enter(permit)
        assert raised.value.problem.status == 404

    run(scenario)


# Regression: the inner block gave the permit back, and the outer one went on while `lost` was false.
def test_a_permit_is_in_one_block_at_a_time(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: AnyClient) -> None:
        key = somebody()
        permit = await hold(client, key)
        async with block(permit):
            with pytest.raises(RuntimeError, match="^the permit is already held by another block; "):
                await enter(permit)
            with pytest.raises(RuntimeError, match="already held"):
                await enter_elsewhere(permit)
            assert isinstance(await acquire(client, key), Denied)
            assert not permit.lost
        with pytest.raises(PermitLost, match="was given back$"):
            await enter(permit)
        await hold(client, key)

    run(scenario)


# Regression: the work began, and the first renewal found that the lease had ended.
def test_a_permit_whose_lease_has_ended_is_not_entered(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: AnyClient) -> None:
        permit = await hold(client, somebody(), ttl_ms=20)
        await asyncio.sleep(0.03)
        assert permit.lost
        with pytest.raises(PermitLost):
            await enter(permit)

    run(scenario)


# Regression: `lost` was false while another client held the permit.
def test_a_released_permit_is_lost(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: AnyClient) -> None:
        key = somebody()
        permit = await hold(client, key)
        async with block(permit):
            await release(client, permit)
            await hold(client, key)
            assert permit.lost

    run(scenario)


def test_the_end_of_a_block_does_not_set_lost(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: AnyClient) -> None:
        permit = await hold(client, somebody())
        await leave_a_block(client, permit)
        assert not permit.lost

    run(scenario)


# `release` stops the renewals, so the lease ends even if the request fails.
def test_a_permit_is_lost_although_its_release_failed(server_url: str) -> None:
    client = Client(server_url, timeout=10)
    permit = client.permit("jobs", somebody())
    assert isinstance(permit, Permit)
    with permit:
        client.close()
        with pytest.raises(Unreachable):
            permit.release()
        assert permit.lost


def test_ends_a_lease_by_the_callers_clock_if_renewals_fail() -> None:
    given = {"allowed": True, "decided": "exact", "limits": [], "id": "x", "ttl_ms": 100}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(201, json=given)
        raise httpx.ConnectError("refused")

    with Client(http=httpx.Client(transport=httpx.MockTransport(answer))) as client:
        permit = client.permit("jobs", "a")
        assert isinstance(permit, Permit)
        with permit:
            assert ends_in_time(permit)


# Regression: the lease was counted from the answer, but at the server it had begun before.
def test_counts_a_lease_from_the_sending_of_the_request() -> None:
    given: dict[str, object] = {"allowed": True, "decided": "exact", "limits": [], "id": "x"}
    grants = [given | {"ttl_ms": ttl_ms} for ttl_ms in (50, 60_000)]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            return httpx.Response(204)
        time.sleep(0.1)
        if request.method == "POST":
            return httpx.Response(201, json=grants.pop(0))
        return httpx.Response(200, json={"id": "x", "ttl_ms": 50})

    async def answer_async(request: httpx.Request) -> httpx.Response:
        return answer(request)

    async def scenario(client: AnyClient) -> None:
        late = await hold(client, "a")
        assert late.lost
        with pytest.raises(PermitLost):
            await enter(late)
        renewed = await hold(client, "a")
        assert not renewed.lost
        await renewed.renew() if isinstance(renewed, AsyncPermit) else renewed.renew()
        assert renewed.lost

    with Client(http=httpx.Client(transport=httpx.MockTransport(answer))) as client:
        asyncio.run(scenario(client))
    grants += [given | {"ttl_ms": ttl_ms} for ttl_ms in (50, 60_000)]

    async def run() -> None:
        async with AsyncClient(http=httpx.AsyncClient(transport=httpx.MockTransport(answer_async))) as client:
            await scenario(client)

    asyncio.run(run())


class LosesCancellations(AsyncClient):
    """Renews as on Python 3.11, whose `asyncio.wait_for` may lose a cancellation."""

    async def _send(self, method: str, path: str, body: object = None, extra_s: float = 0.0) -> Raw:
        if method == "PUT":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass
        return await super()._send(method, path, body, extra_s)


def test_a_release_ends_although_a_cancellation_is_lost(server_url: str) -> None:
    async def run() -> None:
        async with LosesCancellations(server_url, timeout=10) as client:
            permit = await client.permit("jobs", somebody(), ttl_ms=3000)
            assert isinstance(permit, AsyncPermit)
            async with permit:
                await asyncio.sleep(1.2)
                await asyncio.wait_for(permit.release(), 10)

    asyncio.run(run())


def test_names_an_invalid_lease_before_it_is_sent(client: Client) -> None:
    permit = client.permit("jobs", somebody())
    assert isinstance(permit, Permit)
    with permit, pytest.raises(ValueError, match="^ttl_ms must be at least 1, not 0$"):
        permit.renew(0)


def test_an_ended_lease_is_not_renewed() -> None:
    """Regression: after a renewal whose answer took longer than the lease, renewals went on."""
    lease = Lease(1_000, time.monotonic())
    assert lease.wait_s() is not None
    lease.start(1_000, time.monotonic() - 2)
    assert lease.wait_s() is None
    assert lease.lost
