"""Reads the waits and pauses that the header fields of a response request.

Reading never fails, because fields come from servers and proxies that may be wrong. A
malformed field is ignored, and no wait is longer than a day. `clients/testdata/README.md`
states the rules, which the Rust and TypeScript clients share with the rows that test them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from ._structured import Item, parse_dictionary, parse_list

DAY_MS = 86_400_000
"""The longest wait that is read. Longer ones are read as this one."""

MAX_VALUE_BYTES = 8192
"""The longest value that is read. Longer ones are malformed."""

_NAMES = frozenset(
    ["date", "retry-after", "ratelimit", "ratelimit-policy"]
    + [f"{form}-{part}" for form in ("ratelimit", "x-ratelimit") for part in ("limit", "remaining", "reset")]
)
# Enough for every time, and exact as a float.
_MAX_DIGITS = 15


@dataclass(frozen=True)
class Advice:
    """The waits that a response requests."""

    wait_ms: int | None
    """The wait before the same request is sent again; `None` if the response has none."""
    pace_ms: int | None
    """The pause before the next request after a success; `None` unless the limit is nearly reached."""


def advise(status: int, fields: Iterable[tuple[str, str]], now_ms: int | None = None) -> Advice:
    """Reads the fields of a response, given as pairs of name and value in the order sent.

    >>> advise(429, [("Retry-After", "2")])
    Advice(wait_ms=2000, pace_ms=None)
    >>> advise(200, [("RateLimit", '"api";r=1;t=6'), ("RateLimit-Policy", '"api";q=10;w=60')])
    Advice(wait_ms=None, pace_ms=3000)
    """
    values = _joined(fields)
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    sent_ms = _date_ms(values.get("date", ""), now_ms)
    clock = _Clock(now_ms if sent_ms is None else sent_ms)
    if status >= 400:
        return Advice(_wait_ms(values, clock), None)
    return Advice(None, _pace_ms(values, clock))


@dataclass(frozen=True)
class _Clock:
    """The time when the response was sent, from which its times are measured."""

    sent_ms: int

    def until(self, time_ms: int) -> int:
        return _bounded(time_ms - self.sent_ms)


@dataclass(frozen=True)
class _Quota:
    limit: int | None
    remaining: int
    reset_ms: int | None


def _wait_ms(values: dict[str, str], clock: _Clock) -> int | None:
    requested = _retry_after_ms(values.get("retry-after", ""), clock)
    if requested is not None:
        return requested
    for quotas in _forms(values, clock):
        # A limit with units left did not deny the request, even if the server lists it.
        used_up = [q.reset_ms for q in quotas if q.remaining == 0 and q.reset_ms is not None]
        if used_up:
            return max(used_up)
    return None


def _pace_ms(values: dict[str, str], clock: _Clock) -> int | None:
    newest = next((quotas for quotas in _forms(values, clock) if quotas), [])
    pauses = [
        -(-q.reset_ms // (q.remaining + 1))
        for q in newest
        if q.reset_ms is not None and q.remaining * 10 <= (q.limit or 0)
    ]
    return max(pauses, default=None)


def _retry_after_ms(value: str, clock: _Clock) -> int | None:
    number = _number(value)
    if number is not None:
        return _bounded(number.ms(1000))
    date = _date_ms(value, clock.sent_ms)
    return None if date is None else clock.until(date)


def _forms(values: dict[str, str], clock: _Clock) -> Iterator[list[_Quota]]:
    """Yields the limits of each form, the newest form first."""
    ratelimit = values.get("ratelimit", "")
    if ratelimit.startswith('"'):
        yield _draft_10(ratelimit, values.get("ratelimit-policy", ""))
    else:
        yield _draft_7(ratelimit, clock)
    yield _separate("ratelimit", values, clock)
    yield _separate("x-ratelimit", values, clock)


def _draft_10(ratelimit: str, policy: str) -> list[_Quota]:
    limits = {item.value: _integer_of(item, "q") for item in parse_list(policy) if isinstance(item.value, str)}
    quotas = []
    for item in parse_list(ratelimit):
        remaining = _integer_of(item, "r")
        if isinstance(item.value, str) and remaining is not None:
            seconds = _integer_of(item, "t")
            reset_ms = None if seconds is None else _bounded(seconds * 1000)
            quotas.append(_Quota(limits.get(item.value), remaining, reset_ms))
    return quotas


def _draft_7(ratelimit: str, clock: _Clock) -> list[_Quota]:
    members = parse_dictionary(ratelimit)
    limit, remaining, reset = (_natural(members.get(key)) for key in ("limit", "remaining", "reset"))
    if remaining is None:
        return []
    return [_Quota(limit, remaining, None if reset is None else _reset_ms(_Number(reset, ""), clock))]


def _separate(form: str, values: dict[str, str], clock: _Clock) -> list[_Quota]:
    remaining = _number(values.get(f"{form}-remaining", ""))
    if remaining is None or remaining.fraction:
        return []
    limit = re.match(r"[0-9]+", values.get(f"{form}-limit", ""))
    reset = _number(values.get(f"{form}-reset", ""))
    return [
        _Quota(
            None if limit is None else _saturated(limit[0]),
            remaining.whole,
            None if reset is None else _reset_ms(reset, clock),
        )
    ]


def _reset_ms(reset: _Number, clock: _Clock) -> int:
    """Reads seconds or a Unix time. Servers send both, and the size of the number tells which it is."""
    if reset.whole < 10**9:
        return _bounded(reset.ms(1000))
    return clock.until(reset.ms(1000 if reset.whole < 10**12 else 1))


@dataclass(frozen=True)
class _Number:
    whole: int
    fraction: str

    def ms(self, unit_ms: int) -> int:
        """Returns milliseconds, rounded up."""
        places = 3 if unit_ms == 1000 else 0
        digits = self.fraction[:places].ljust(places, "0")
        more = self.fraction[places:].strip("0") != ""
        return self.whole * unit_ms + int(digits or "0") + more


def _number(value: str) -> _Number | None:
    match = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?", value)
    return None if match is None else _Number(_saturated(match[1]), match[2] or "")


def _saturated(digits: str) -> int:
    digits = digits.lstrip("0")
    return 10**_MAX_DIGITS if len(digits) > _MAX_DIGITS else int(digits or "0")


def _integer_of(item: Item, parameter: str) -> int | None:
    return _natural(Item(item.parameters.get(parameter)))


def _natural(item: Item | None) -> int | None:
    return item.value if item is not None and isinstance(item.value, int) and item.value >= 0 else None


def _bounded(ms: int) -> int:
    return min(max(ms, 0), DAY_MS)


def _joined(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in fields:
        name = name.lower()
        if name in _NAMES:
            value = value.strip(" \t")
            values[name] = f"{values[name]}, {value}" if name in values else value
    return {name: value for name, value in values.items() if len(value) <= MAX_VALUE_BYTES}


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME = r"(?P<h>[0-9]{2}):(?P<m>[0-9]{2}):(?P<s>[0-9]{2})"
_MONTH = "(?P<month>" + "|".join(_MONTHS) + ")"
# The three forms of RFC 9110, section 5.6.7. `strptime` and `email.utils` accept more.
_DATES = [
    re.compile(rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(rf"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_MONTH} (?P<day>[0-9]{{2}}| [0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
]


def _date_ms(value: str, now_ms: int) -> int | None:
    match = next((found for form in _DATES if (found := form.fullmatch(value))), None)
    if match is None:
        return None
    year = int(match["year"])
    if len(match["year"]) == 2:
        year = _full_year(year, now_ms)
    month = _MONTHS.index(match["month"]) + 1
    try:
        day, hour, minute, second = (int(match[part]) for part in ("day", "h", "m", "s"))
        date = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:
        return None
    return int(date.timestamp()) * 1000


def _full_year(two_digits: int, now_ms: int) -> int:
    """Returns the year. One that is more than 50 years ahead is in the previous century."""
    this_year = 1970 + now_ms // (365 * DAY_MS + DAY_MS // 4)
    year = this_year - this_year % 100 + two_digits
    return year - 100 if year > this_year + 50 else year
