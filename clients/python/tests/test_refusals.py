"""A service sends the same fields and documents as tidegate does through a gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

import httpx
import pytest

from tidegate import Answer, Attributes, Client, Line, rate_limit_fields, refusal, unavailable


@pytest.mark.parametrize("path", ["/login", "/api/a", "/elsewhere"])
def test_makes_the_same_response_as_the_server(client: Client, server_url: str, path: str) -> None:
    attributes = Attributes(method="POST", path=path, client_ip=f"198.51.100.{len(path)}")
    through = {
        "x-forwarded-method": "POST",
        "x-forwarded-uri": path,
        "x-forwarded-for": f"198.51.101.{len(path)}",
    }
    for _ in range(5):
        answer = client.check(attributes=attributes)
        theirs = httpx.get(f"{server_url}/v1/forward-auth", headers=through, timeout=10)
        names = ("retry-after", "ratelimit", "ratelimit-policy")
        expect = {name: theirs.headers[name] for name in names if name in theirs.headers}
        assert timeless(dict(rate_limit_fields(answer))) == timeless(expect)
        assert answer.allowed == (theirs.status_code == 200)
        if not answer.allowed:
            ours = refusal(answer)
            assert ours.status == theirs.status_code == 429
            assert timeless(json.loads(ours.body)) == timeless(theirs.json())
            assert timeless(dict(ours.fields)) == timeless(expect | {"content-type": "application/problem+json"})


def timeless(said: Mapping[str, object]) -> dict[str, str]:
    """Removes the seconds, because the two checks were sent one after the other."""
    return {name: re.sub(r"(^|;t=|after )\d+( s)?$", r"\1...", str(value)) for name, value in said.items()}


LINE = Line("api", 5, 1000, "sliding-log", 0, False, 300)
DENIED = Answer(False, "api", 5, 0, 300, 1000, "exact", (LINE,))


def line(policy: str | None, window_ms: int, algorithm: str = "sliding-log") -> Line:
    return replace(LINE, policy=policy, window_ms=window_ms, algorithm=algorithm)


@pytest.mark.parametrize(
    ("lines", "expect"),
    [
        ([line("a", 1000)], '"a";q=5;w=1'),
        ([line("a", 1500)], '"a";q=5;w=2'),
        ([line("a", 1000), line("a", 60_000)], '"a-1s";q=5;w=1, "a-1m";q=5;w=60'),
        ([line("a", 1000), line("a", 1000)], '"a-1s";q=5;w=1, "a-1s-2";q=5;w=1'),
        ([line("a", 1000), line("a", 2000), line("a-1s", 7000)], '"a-1s-2";q=5;w=1, "a-2s";q=5;w=2, "a-1s";q=5;w=7'),
        ([line(None, 604_800_000), line(None, 1)], '"1w";q=5;w=604800, "1ms";q=5;w=1'),
        ([line("a", 60_000, "concurrency")], '"a";q=5;qu="concurrent-requests"'),
        ([line('a"\\\x00é', 1000)], r'"a\"\\??";q=5;w=1'),
        ([replace(line("a", 1000), mode="observe"), line("b", 1000)], '"b";q=5;w=1'),
    ],
)
def test_names_each_limit_uniquely(lines: list[Line], expect: str) -> None:
    assert dict(rate_limit_fields(replace(DENIED, limits=tuple(lines))))["ratelimit-policy"] == expect


def test_always_lists_the_reported_limit() -> None:
    many = tuple(line(f"policy-{number}", 1000) for number in range(256))
    spoken = replace(many[255], remaining=0, limit=7)
    answer = replace(DENIED, policy="policy-255", limit=7, limits=(*many[:255], spoken))
    policy = dict(rate_limit_fields(answer))["ratelimit-policy"]
    assert len(policy) <= 2048
    assert policy.endswith('"policy-255";q=7;w=1')


@pytest.mark.parametrize(
    ("answer", "status", "kind", "retry_after"),
    [
        (DENIED, 429, "quota-exceeded", "1"),
        (replace(DENIED, retry_after_ms=None), 429, "quota-exceeded", None),
        (replace(DENIED, no_room=True), 429, "temporary-reduced-capacity", "1"),
        (replace(DENIED, decided="failed-closed", remaining=None), 503, "temporary-reduced-capacity", "1"),
    ],
)
def test_chooses_the_status_and_the_problem_type(answer: Answer, status: int, kind: str, retry_after: str | None) -> None:
    refused = refusal(answer)
    problem = json.loads(refused.body)
    assert (refused.status, problem["status"], problem["type"].split("#")[1]) == (status, status, kind)
    assert problem["violated-policies"] == ["api"]
    assert dict(refused.fields).get("retry-after") == retry_after


@pytest.mark.parametrize(
    ("remaining", "retry_after_ms", "detail"),
    [
        (0, 300, "used up: `5 per 1s sliding-log` of policy api; retry after 1 s"),
        (3, 300, "not enough left: `5 per 1s sliding-log` of policy api; retry after 1 s"),
        (3, None, "this cost can never pass `5 per 1s sliding-log` of policy api"),
    ],
)
def test_names_the_cause_in_the_detail(remaining: int, retry_after_ms: int | None, detail: str) -> None:
    limit = replace(LINE, remaining=remaining, retry_after_ms=retry_after_ms)
    answer = replace(DENIED, remaining=remaining, retry_after_ms=retry_after_ms, limits=(limit,))
    assert json.loads(refusal(answer).body)["detail"] == detail


def test_makes_a_503_when_tidegate_does_not_answer() -> None:
    refused = unavailable()
    assert refused.status == 503
    assert dict(refused.fields) == {"content-type": "application/problem+json", "retry-after": "1"}
