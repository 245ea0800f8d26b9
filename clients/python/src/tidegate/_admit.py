"""Checks a request on behalf of middleware.

A request that tidegate rejects as invalid (a malformed address, attributes of more than
64 KiB) is refused whatever `on_failure` is: otherwise a client could bypass its limits by
sending long headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from ._client import AsyncClient, Client
from ._wire import Attributes, Check
from .answers import Answer
from .errors import Rejected, TidegateError
from .refusals import Refusal, rate_limit_fields, refusal, unavailable, unreadable

OnFailure = Literal["allow", "deny"]


@dataclass(frozen=True)
class Passage:
    """The decision about a request."""

    refusal: Refusal | None = None
    """The response to send instead, or `None` if the request may go on."""
    fields: tuple[tuple[str, str], ...] = ()
    """Header fields for the response of a request that may go on."""
    failure: TidegateError | None = None
    """Why there was no decision. Log it: a limit that fails open is otherwise silent."""


def admit(client: Client, check: Attributes | Check, on_failure: OnFailure) -> Passage:
    """Checks a request.

    If tidegate makes no decision (no answer in time, or an error such as a wrong token or an
    unknown policy), `on_failure` decides. A check that tidegate rejects as invalid or too long
    (400, 413) is refused with either value.

    The time is the client's timeout, plus the `max_wait_ms` of the check.
    """
    _require_valid(on_failure)
    arguments = _arguments(check)
    try:
        return _decided(client.check(**arguments))
    except TidegateError as failure:
        return _undecided(failure, on_failure)


async def admit_async(client: AsyncClient, check: Attributes | Check, on_failure: OnFailure) -> Passage:
    """Checks a request, as `admit` does, from asyncio."""
    _require_valid(on_failure)
    arguments = _arguments(check)
    try:
        return _decided(await client.check(**arguments))
    except TidegateError as failure:
        return _undecided(failure, on_failure)


def _require_valid(on_failure: OnFailure) -> None:
    """Raises `ValueError` for a misspelt value, which would otherwise fail open at the first failure."""
    if on_failure not in get_args(OnFailure):
        raise ValueError(f'on_failure must be "allow" or "deny", not {on_failure!r}')


def _arguments(check: Attributes | Check) -> dict[str, Any]:
    """The arguments of `Client.check`."""
    if isinstance(check, Check):
        return vars(check)
    if not isinstance(check, Attributes):
        kind = type(check).__name__
        raise TypeError(f"check must be Attributes or a Check, such as Check('login', 'alice'), not {kind}")
    return {"attributes": check}


def _decided(answer: Answer) -> Passage:
    if answer.allowed:
        return Passage(fields=tuple(rate_limit_fields(answer)))
    return Passage(refusal=refusal(answer))


def _undecided(failure: TidegateError, on_failure: OnFailure) -> Passage:
    if isinstance(failure, Rejected) and failure.problem.status in (400, 413):
        return Passage(refusal=unreadable(), failure=failure)
    return Passage(refusal=unavailable() if on_failure == "deny" else None, failure=failure)
