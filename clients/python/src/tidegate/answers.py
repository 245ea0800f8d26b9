"""The answers of the server, as plain data with the names of the HTTP API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Decided = Literal["exact", "local", "failed-open", "failed-closed"]


@dataclass(frozen=True)
class Line:
    """The answer of one limit."""

    policy: str | None
    limit: int
    window_ms: int
    """The window; for `concurrency`, the lease."""
    algorithm: str
    remaining: int | None
    allowed: bool
    retry_after_ms: int | None
    mode: str | None = None
    """`observe` if the limit is not enforced."""
    decided: str = "exact"


@dataclass(frozen=True)
class Answer:
    """A decision. `policy`, `limit`, `remaining` and `reset_after_ms` describe one limit: the one that denied
    with the longest wait, or the one with the least remaining. It is true if the request is allowed."""

    allowed: bool
    policy: str | None
    """`None` if no policy applied, or for limits that the caller gave."""
    limit: int | None
    remaining: int | None
    """`None` if unknown, because the store failed."""
    retry_after_ms: int | None
    """0 if allowed, `None` if this cost can never pass."""
    reset_after_ms: int | None
    decided: str
    """`exact`, or how it was decided while the shared store is unavailable: see `Decided`."""
    limits: tuple[Line, ...]
    no_room: bool = False
    """Whether it was denied only because the store is full."""

    def __bool__(self) -> bool:
        return self.allowed


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
    """A denied permit. It is false, and a `Permit` is true."""

    problem: Problem
    retry_after_ms: int | None
    """`None` if this cost can never pass."""
    fields: tuple[tuple[str, str], ...]
    """`Retry-After` and the rate limit fields of the response, for your own response."""
    allowed: Literal[False] = False

    def __bool__(self) -> Literal[False]:
        return False
