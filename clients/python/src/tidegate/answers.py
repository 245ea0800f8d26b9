"""What the server says, as plain data, with the names the HTTP API gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Decided = Literal["exact", "local", "failed-open", "failed-closed"]


@dataclass(frozen=True)
class Line:
    """What one limit said."""

    policy: str | None
    limit: int
    window_ms: int
    """The lease, for `concurrency`."""
    algorithm: str
    remaining: int | None
    allowed: bool
    retry_after_ms: int | None
    mode: str | None = None
    """`observe` if the limit is only watched and had no say."""
    decided: str = "exact"


@dataclass(frozen=True)
class Answer:
    """A decision. `policy`, `limit`, `remaining` and `reset_after_ms` speak of one limit: the denying one
    with the longest wait, or the one with the least remaining."""

    allowed: bool
    policy: str | None
    """`None` if no policy applied, or for limits of the caller's own."""
    limit: int | None
    remaining: int | None
    """`None` where nobody knows, because the store failed."""
    retry_after_ms: int | None
    """0 if allowed, `None` if this cost can never pass."""
    reset_after_ms: int | None
    decided: str
    """`exact`, or how it was decided while the shared store fails: see `Decided`."""
    limits: tuple[Line, ...]
    no_room: bool = False
    """The store is full, and that alone is why."""


@dataclass(frozen=True)
class Problem:
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    violated_policies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Denied:
    """No place is free: a permit that was not given."""

    problem: Problem
    retry_after_ms: int | None
    """`None` if this cost can never pass."""
    fields: tuple[tuple[str, str], ...]
    """`Retry-After` and the rate limit fields, to be sent on."""
    allowed: Literal[False] = False
