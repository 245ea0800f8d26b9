"""A FastAPI service whose requests tidegate limits. In the directory of this file:

    pip install CLONE/clients/python fastapi uvicorn
    tidegate serve --config CLONE/examples/node-gateway/tidegate.yaml
    uvicorn fastapi_app:app

Every request is checked before it is handled. A denied request gets the fields and the
document that tidegate would send through a gateway. The response to an admitted request
carries the fields too.

TIDEGATE_URL         the address of tidegate; default: http://127.0.0.1:8080
TIDEGATE_TOKEN       its secret, if it requires one
TIDEGATE_ON_FAILURE  allow (the default) or deny requests if tidegate makes no decision: no answer
                     in time, or an error such as a wrong token or an unknown policy
TIDEGATE_DEADLINE_MS the time that tidegate has to answer; default: 50
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from urllib.parse import quote

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate import AsyncClient, Attributes, OnFailure, Refusal, admit_async

log = logging.getLogger("tidegate")

Fields = Iterable[tuple[str, str]]


class RateLimit:
    """ASGI middleware. `headers` are the only ones sent to tidegate: those that policies use."""

    def __init__(
        self,
        app: ASGIApp,
        client: AsyncClient,
        on_failure: OnFailure = "allow",
        headers: Iterable[str] = ("x-api-key",),
    ) -> None:
        if on_failure not in ("allow", "deny"):
            raise ValueError(f"on_failure must be allow or deny, not {on_failure!r}")
        self._app, self._client, self._on_failure = app, client, on_failure
        self._headers = frozenset(name.lower() for name in headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        passage = await admit_async(self._client, self._attributes(scope), self._on_failure)
        if passage.failure is not None:
            log.warning("no decision by tidegate, on_failure is %s: %s", self._on_failure, passage.failure)
        if passage.refusal is not None:
            await _refuse(send, passage.refusal)
        else:
            await self._app(scope, receive, _with_fields(send, passage.fields))

    def _attributes(self, scope: Scope) -> Attributes:
        sent = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        # The address is the peer's. Behind your own proxy, let the ASGI server determine the client
        # (uvicorn --proxy-headers --forwarded-allow-ips): clients can send any X-Forwarded-For.
        peer = scope.get("client")
        return Attributes(
            method=scope["method"],
            # The decoded path, by which FastAPI chooses the handler. As it was sent, /api%2Fhello
            # would not match /api in tidegate, but would reach its handler.
            path=quote(scope["path"]),
            query=scope["query_string"].decode("latin-1") or None,
            host=dict(sent).get("host"),
            client_ip=peer[0] if peer else None,
            headers={name: value for name, value in sent if name in self._headers},
        )


def _with_fields(send: Send, fields: Fields) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *_encoded(fields)]}
        await send(message)

    return sending


async def _refuse(send: Send, refused: Refusal) -> None:
    await send({"type": "http.response.start", "status": refused.status, "headers": _encoded(refused.fields)})
    await send({"type": "http.response.body", "body": refused.body})


def _encoded(fields: Fields) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in fields]


def create_app(client: AsyncClient, on_failure: OnFailure = "allow") -> FastAPI:
    @asynccontextmanager
    async def closing(_: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    app = FastAPI(lifespan=closing)
    app.add_middleware(RateLimit, client=client, on_failure=on_failure)

    @app.get("/api/hello")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    @app.post("/login")
    async def login() -> dict[str, str]:
        return {"login": "tried"}

    return app


def app_from_environment() -> FastAPI:
    client = AsyncClient(
        os.environ.get("TIDEGATE_URL", "http://127.0.0.1:8080"),
        token=os.environ.get("TIDEGATE_TOKEN"),
        timeout=int(os.environ.get("TIDEGATE_DEADLINE_MS", "50")) / 1000,
    )
    on_failure = os.environ.get("TIDEGATE_ON_FAILURE", "allow")
    if on_failure not in ("allow", "deny"):
        raise ValueError(f"TIDEGATE_ON_FAILURE must be allow or deny, not {on_failure!r}")
    return create_app(client, "deny" if on_failure == "deny" else "allow")


app = app_from_environment()
