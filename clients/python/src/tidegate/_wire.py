"""The wire format of requests and answers, for both clients."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from .answers import Answer, Denied, Line, Problem
from .errors import PermitLost, Rejected, Unavailable, UnexpectedAnswer
from .fields import advise

MAX_ANSWER_BYTES = 64 << 20
"""The longest answer that is read. A batch of 1,000 checks against 256 limits each is far shorter."""

_MAX_COST = 10**12
"""The largest cost that the server accepts."""
_MAX_WAIT_MS = 60_000
"""The longest wait that the server accepts."""

_MAX_SHOWN = 200
"""The longest text of a server that a message repeats, in characters."""

_SENT_ON = ("retry-after", "ratelimit", "ratelimit-policy")
_SENT_ON_PREFIXES = ("ratelimit-", "x-ratelimit-")

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Attributes:
    """The attributes of a request, by which the server selects policies and makes keys."""

    method: str | None = None
    path: str | None = None
    query: str | None = None
    host: str | None = None
    client_ip: str | None = None
    headers: Mapping[str, str] | None = None
    descriptors: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None
    """Several mappings, where a name occurs twice."""
    domain: str | None = None
    """The domain of the descriptors."""

    def json(self) -> dict[str, object]:
        body = _present(vars(self))
        for name in ("headers", "descriptors"):
            if isinstance(pairs := body.get(name), Mapping):
                body[name] = dict(pairs)
        if isinstance(several := body.get("descriptors"), (list, tuple)):
            body["descriptors"] = [dict(one) for one in several]
        return body


@dataclass(frozen=True)
class Check:
    """A check. It has `policy` and `key`, or `attributes`, or `key` and `limits`.

    Types and ranges are checked here. The server would reject them too, but with a `TidegateError`,
    for which a caller may fail open. The server checks the rest, such as names of policies, the text
    of limits and the values of attributes, which may be a client's.
    """

    policy: str | None = None
    key: str | None = None
    attributes: Attributes | None = None
    limits: Sequence[str] | None = None
    cost: int | None = None
    id: str | None = None
    force: bool | None = None
    max_wait_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("policy", "key", "id"):
            if not isinstance(text := getattr(self, name), (str, type(None))):
                raise TypeError(f"{name} must be a string, not {type(text).__name__}")
        _require_limits(self.limits)
        if not isinstance(self.attributes, (Attributes, type(None))):
            kind = type(self.attributes).__name__
            raise TypeError(f"attributes must be Attributes, such as Attributes(path='/login'), not {kind}")
        if self.attributes is None and (self.key is None or (self.policy is None and self.limits is None)):
            raise TypeError("policy and key, attributes, or key and limits are required")
        if not isinstance(self.force, (bool, type(None))):
            raise TypeError(f"force must be True or False, not {self.force!r}")
        require_whole("cost", self.cost, -_MAX_COST, _MAX_COST)
        require_whole("max_wait_ms", self.max_wait_ms, 0, _MAX_WAIT_MS)

    def json(self) -> dict[str, object]:
        body = _present(vars(self))
        if self.attributes is not None:
            body["attributes"] = self.attributes.json()
        if self.limits is not None:
            body["limits"] = limits = list(self.limits)
            for limit in limits:
                if not isinstance(limit, str):
                    raise TypeError(f"limits must be a list of strings, but contains {type(limit).__name__}")
        return body


def permit_body(check: Check, ttl_ms: int | None) -> dict[str, object]:
    """The body of a request for a permit."""
    require_whole("cost", check.cost, 1, _MAX_COST)
    return check.json() | lease_body(ttl_ms)


def lease_body(ttl_ms: int | None) -> dict[str, object]:
    """The length of a lease, if it is given."""
    require_whole("ttl_ms", ttl_ms, 1)
    return {} if ttl_ms is None else {"ttl_ms": ttl_ms}


def _require_limits(limits: object) -> None:
    # A string is a sequence of strings too: each character would become a limit.
    if isinstance(limits, str):
        raise TypeError(f"limits must be a list of strings, such as [{limits!r}], not a string")
    if isinstance(limits, bytes) or not isinstance(limits, (Iterable, type(None))):
        raise TypeError(f"limits must be a list of strings, not {type(limits).__name__}")


@dataclass(frozen=True)
class Raw:
    """A complete response, and the URL of its request without credentials."""

    url: str
    status: int
    fields: Sequence[tuple[str, str]]
    body: bytes


@dataclass(frozen=True)
class Grant:
    """A permit as the server returns it."""

    answer: Answer
    id: str
    ttl_ms: int


def require_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Rejects a number that JSON cannot express or the server does not accept."""
    if value is None:
        return
    # In Python `True` is an int; in JSON it is not.
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value % 1 != 0:
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be {bounds}, not {value!r}")


class Malformed(Exception):
    """A body that tidegate does not send."""


def rows(checks: Iterable[Check]) -> list[dict[str, object]]:
    """The checks of a batch."""
    listed = list(checks)
    for check in listed:
        if not isinstance(check, Check):
            raise TypeError(f"checks must be Check, such as Check('login', 'alice'), not {type(check).__name__}")
    return [check.json() for check in listed]


def encode(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def unexpected(url: str, reason: str) -> UnexpectedAnswer:
    return UnexpectedAnswer(f"unexpected answer from {url}: {reason}")


def _decoder(decode: Callable[Concatenate[Raw, P], T]) -> Callable[Concatenate[Raw, P], T]:
    """Turns `Malformed` into an error that names the URL."""

    @functools.wraps(decode)
    def decoded(raw: Raw, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return decode(raw, *args, **kwargs)
        except Malformed as error:
            raise unexpected(raw.url, str(error)) from error

    return decoded


@_decoder
def answer(raw: Raw) -> Answer:
    return _answer(_document(raw, 200))


@_decoder
def answers(raw: Raw, count: int) -> list[Answer | Problem]:
    rows = _get(_document(raw, 200), "answers", list)
    if len(rows) != count:
        raise Malformed(f"{len(rows)} answers to {count} checks")
    return [_answer(row) if "allowed" in _object(row) else _problem(_object(row)) for row in rows]


@_decoder
def grant(raw: Raw) -> Grant | Denied:
    if raw.status == 429:
        problem = _problem(_object(_json(raw)))
        wait_ms = advise(429, [f for f in raw.fields if f[0].lower() == "retry-after"]).wait_ms
        return Denied(problem, wait_ms, tuple(_sent_on(raw.fields)))
    document = _document(raw, 201)
    return Grant(_answer(document), _get(document, "id", str), _get(document, "ttl_ms", int))


@_decoder
def renewed(raw: Raw) -> int:
    """Returns the length of the renewed lease."""
    _still_held(raw)
    return _get(_document(raw, 200), "ttl_ms", int)


@_decoder
def released(raw: Raw) -> None:
    _still_held(raw)
    if raw.status != 204:
        raise _refusal(raw)


def require_enterable(*, released: bool, lost: bool, in_block: bool) -> None:
    """Rejects a permit that is no longer held, as the server would, and one that is in another block."""
    if released or lost:
        detail = "the permit was given back" if released else "the lease of the permit has ended"
        raise PermitLost(Problem("about:blank", "Not Found", 404, detail), None)
    if in_block:
        # The first block to end would give the permit back while the other one goes on.
        raise RuntimeError("the permit is already held by another block; acquire a permit for each block")


def _still_held(raw: Raw) -> None:
    if raw.status == 404 and isinstance(refusal := _refusal(raw), Rejected):
        raise PermitLost(refusal.problem, raw.url)


def _document(raw: Raw, status: int) -> dict[str, Any]:
    if raw.status != status:
        raise _refusal(raw)
    return _object(_json(raw))


def _refusal(raw: Raw) -> Exception:
    if raw.status < 400:
        return unexpected(raw.url, f"unexpected status {raw.status}")
    try:
        problem = _problem(_object(_json(raw)))
    except Malformed:
        return unexpected(raw.url, f"status {raw.status} without a problem document{_plain_text(raw)}")
    return Unavailable(problem, raw.url) if raw.status == 503 else Rejected(problem, raw.url)


def _plain_text(raw: Raw) -> str:
    """Returns the first line of a plain-text body for a message. Other ports and proxies may name the mistake there."""
    kind = next((value for name, value in raw.fields if name.lower() == "content-type"), "")
    if kind.split(";")[0].strip().lower() != "text/plain":
        return ""
    line = raw.body.decode(errors="replace").strip().split("\n")[0].strip()
    more = "..." if len(line) > _MAX_SHOWN else ""
    # A control character could change what a terminal shows.
    shown = "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in line[:_MAX_SHOWN])
    return f": {shown}{more}" if shown else ""


def _json(raw: Raw) -> object:
    try:
        return json.loads(raw.body)
    # RecursionError: deeply nested brackets, which tidegate never sends.
    except (ValueError, RecursionError) as error:
        raise Malformed(f"status {raw.status} with a body that is not JSON") from error


def _answer(row: object) -> Answer:
    row = _object(row)
    return Answer(
        allowed=_get(row, "allowed", bool),
        policy=_get_optional(row, "policy", str),
        limit=_get_optional(row, "limit", int),
        remaining=_get_optional(row, "remaining", int),
        retry_after_ms=_get_optional(row, "retry_after_ms", int),
        reset_after_ms=_get_optional(row, "reset_after_ms", int),
        decided=_get(row, "decided", str),
        limits=tuple(_line(_object(line)) for line in _get(row, "limits", list)),
        no_room=_get_optional(row, "no_room", bool) or False,
    )


def _line(row: dict[str, Any]) -> Line:
    return Line(
        policy=_get_optional(row, "policy", str),
        limit=_get(row, "limit", int),
        window_ms=_get(row, "window_ms", int),
        algorithm=_get(row, "algorithm", str),
        remaining=_get_optional(row, "remaining", int),
        allowed=_get(row, "allowed", bool),
        retry_after_ms=_get_optional(row, "retry_after_ms", int),
        mode=_get_optional(row, "mode", str),
        decided=_get_optional(row, "decided", str) or "exact",
    )


def _problem(row: dict[str, Any]) -> Problem:
    violated = _get_optional(row, "violated-policies", list) or []
    return Problem(
        type=_get(row, "type", str),
        title=_get(row, "title", str),
        status=_get(row, "status", int),
        detail=_get(row, "detail", str),
        field=_get_optional(row, "field", str),
        violated_policies=tuple(str(name) for name in violated),
    )


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed("expected a JSON object")
    return value


def _get(row: dict[str, Any], name: str, kind: type[T]) -> T:
    value = _get_optional(row, name, kind)
    if value is None:
        raise Malformed(f"`{name}` is missing from the answer")
    return value


def _get_optional(row: dict[str, Any], name: str, kind: type[T]) -> T | None:
    value = row.get(name)
    # In Python `True` is an int; in JSON it is not.
    if value is not None and type(value) is not kind:
        raise Malformed(f"`{name}` of the answer is not of type {kind.__name__}")
    return value


def _present(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _sent_on(fields: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    for name, value in fields:
        if name.lower() in _SENT_ON or name.lower().startswith(_SENT_ON_PREFIXES):
            yield name, value
