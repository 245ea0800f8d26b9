"""Asking on behalf of a request that is waiting: for middleware.

What tidegate will not read (an address that is none, attributes of more than 64 KiB) is
refused whatever `on_failure` says: if it were let through, a client could get past its
limits by sending headers that are long enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._client import AsyncClient, Client
from ._wire import Attributes
from .answers import Answer
from .errors import Rejected, TidegateError
from .refusals import Refusal, rate_limit_fields, refusal, unavailable, unreadable

OnFailure = Literal["allow", "deny"]


@dataclass(frozen=True)
class Passage:
    """What becomes of a request."""

    refusal: Refusal | None = None
    """The response to send instead, or `None` if the request may go on."""
    fields: tuple[tuple[str, str], ...] = ()
    """What the response of a request that goes on should carry."""
    failure: TidegateError | None = None
    """Why nobody could be asked: to be logged, for a limit that fails open fails silently."""


def admit(client: Client, attributes: Attributes, on_failure: OnFailure) -> Passage:
    """Asks, and says what to do. While tidegate does not answer in the client's time, `on_failure` decides."""
    try:
        return _decided(client.check(attributes=attributes))
    except TidegateError as failure:
        return _undecided(failure, on_failure)


async def admit_async(client: AsyncClient, attributes: Attributes, on_failure: OnFailure) -> Passage:
    """The same for asyncio."""
    try:
        return _decided(await client.check(attributes=attributes))
    except TidegateError as failure:
        return _undecided(failure, on_failure)


def _decided(answer: Answer) -> Passage:
    if answer.allowed:
        return Passage(fields=tuple(rate_limit_fields(answer)))
    return Passage(refusal=refusal(answer))


def _undecided(failure: TidegateError, on_failure: OnFailure) -> Passage:
    if isinstance(failure, Rejected) and failure.problem.status in (400, 413):
        return Passage(refusal=unreadable(), failure=failure)
    return Passage(refusal=unavailable() if on_failure == "deny" else None, failure=failure)
