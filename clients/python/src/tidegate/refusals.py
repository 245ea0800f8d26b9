"""Header fields and responses for the callers of your service, for middleware.

`/v1/check` answers with numbers. These functions turn them into the fields of
draft-ietf-httpapi-ratelimit-headers-10 and the problem document (RFC 9457) that tidegate
sends through a gateway, with the same names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from .answers import Answer, Line

_QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
_REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
_QUOTA_TITLE = "Request cannot be satisfied as assigned quota has been exceeded"
_CAPACITY_TITLE = "Request cannot be satisfied due to temporary server capacity constraints"

_UNITS_MS = (("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
# Proxies refuse long header fields.
_MAX_POLICY_BYTES = 2048


@dataclass(frozen=True)
class Refusal:
    """A response that refuses a request."""

    status: int
    fields: tuple[tuple[str, str], ...]
    body: bytes


def rate_limit_fields(answer: Answer) -> list[tuple[str, str]]:
    """Returns `RateLimit`, `RateLimit-Policy` and, on a denial, `Retry-After`, for any response.

    Empty if no limit applied. Limits that are only observed are left out.
    """
    lines = _shown(answer)
    names = _names(lines)
    speaker = _speaker(answer, lines)
    fields = []
    if not answer.allowed and answer.retry_after_ms is not None:
        fields.append(("retry-after", str(_seconds(answer.retry_after_ms))))
    if speaker is not None and (remaining := lines[speaker].remaining) is not None:
        wait_ms = answer.reset_after_ms if answer.allowed else lines[speaker].retry_after_ms
        until = "" if wait_ms is None else f";t={_seconds(wait_ms)}"
        fields.append(("ratelimit", f"{_quoted(names[speaker])};r={remaining}{until}"))
    items = [_policy_item(line, name) for line, name in zip(lines, names, strict=True)]
    if items:
        fields.append(("ratelimit-policy", _within_bounds(items, speaker)))
    return fields


def refusal(answer: Answer) -> Refusal:
    """Returns the response to a denied request: 429, or 503 if the reason is an unavailable store."""
    lines = _shown(answer)
    denied = [name for line, name in zip(lines, _names(lines), strict=True) if not line.allowed]
    if answer.decided == "failed-closed":
        problem = _capacity(503, "the request cannot be decided now; try again later")
    elif answer.no_room:
        problem = _capacity(429, "there is no room for new keys now, so they are denied; try again later")
    else:
        problem = {"type": _QUOTA_EXCEEDED, "title": _QUOTA_TITLE, "status": 429, "detail": _detail(answer, lines)}
    return _refusal(problem | {"violated-policies": denied}, rate_limit_fields(answer))


def unavailable(retry_after_s: int = 1) -> Refusal:
    """Returns the response of a service that fails closed if tidegate makes no decision."""
    return _refusal(_capacity(503, "the request cannot be decided now; try again later"), [("retry-after", str(retry_after_s))])


def unreadable() -> Refusal:
    """Returns the response to a request that is too long or malformed to be checked."""
    detail = "it cannot be checked against its limits: it is malformed or too long"
    return _refusal({"type": "about:blank", "title": "Bad Request", "status": 400, "detail": detail}, [])


def _refusal(problem: dict[str, object], fields: list[tuple[str, str]]) -> Refusal:
    status = problem["status"]
    assert isinstance(status, int)
    body = json.dumps(problem, separators=(",", ":")).encode()
    return Refusal(status, (("content-type", "application/problem+json"), *fields), body)


def _capacity(status: int, detail: str) -> dict[str, object]:
    return {"type": _REDUCED_CAPACITY, "title": _CAPACITY_TITLE, "status": status, "detail": detail}


def _detail(answer: Answer, lines: Sequence[Line]) -> str:
    speaker = _speaker(answer, lines)
    if speaker is None:
        return "used up"
    line = lines[speaker]
    of_policy = "" if line.policy is None else f" of policy {line.policy}"
    if answer.retry_after_ms is None:
        return f"this cost can never pass `{_limit(line)}`{of_policy}"
    cause = "not enough left" if line.remaining else "used up"
    return f"{cause}: `{_limit(line)}`{of_policy}; retry after {_seconds(answer.retry_after_ms)} s"


def _limit(line: Line) -> str:
    if line.algorithm == "concurrency":
        return f"{line.limit} concurrent lease {_in_units(line.window_ms)}"
    return f"{line.limit} per {_in_units(line.window_ms)} {line.algorithm}"


def _shown(answer: Answer) -> list[Line]:
    return [line for line in answer.limits if line.mode != "observe"]


def _speaker(answer: Answer, lines: Sequence[Line]) -> int | None:
    """Returns the index of the limit that the answer reports."""
    numbers = (answer.policy, answer.limit, answer.remaining)
    for index, line in enumerate(lines):
        if (line.policy, line.limit, line.remaining) == numbers and (answer.allowed or not line.allowed):
            return index
    return None


def _names(lines: Sequence[Line]) -> list[str]:
    """Returns the name of each limit: its policy's, with the window if there are several, and a number if taken."""
    policies = [line.policy for line in lines]
    alone = [line.policy is not None and policies.count(line.policy) == 1 for line in lines]
    names = [line.policy or "" if is_alone else "" for line, is_alone in zip(lines, alone, strict=True)]
    for index, line in enumerate(lines):
        if not alone[index]:
            window = "concurrent" if line.algorithm == "concurrency" else _in_units(line.window_ms)
            base = window if line.policy is None else f"{line.policy}-{window}"
            numbered = [base] + [f"{base}-{number}" for number in range(2, len(lines) + 2)]
            names[index] = next(name for name in numbered if name not in names)
    return names


def _policy_item(line: Line, name: str) -> str:
    if line.algorithm == "concurrency":
        return f'{_quoted(name)};q={line.limit};qu="concurrent-requests"'
    return f"{_quoted(name)};q={line.limit};w={_seconds(line.window_ms)}"


def _within_bounds(items: Sequence[str], speaker: int | None) -> str:
    """Joins as many items as fit. The reported limit is always among them."""
    room = _MAX_POLICY_BYTES - (0 if speaker is None else len(items[speaker]) + 2)
    kept = []
    for index, item in enumerate(items):
        if index == speaker:
            kept.append(item)
        elif len(item) + 2 <= room:
            room -= len(item) + 2
            kept.append(item)
    return ", ".join(kept)


def _in_units(ms: int) -> str:
    unit, size = next((unit, size) for unit, size in _UNITS_MS if ms % size == 0)
    return f"{ms // size}{unit}"


def _seconds(ms: int) -> int:
    """Returns seconds, rounded up, so that a caller that waits as long is not early."""
    return -(-ms // 1000)


def _quoted(name: str) -> str:
    """Returns a String of a structured field. Names of policies are printable ASCII."""
    text = "".join(char if " " <= char <= "~" else "?" for char in name)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
