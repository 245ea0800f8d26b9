"""Header fields: the rows that all clients share, and random fields."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from conftest import TESTDATA

from tidegate import Advice, advise
from tidegate.fields import DAY_MS, MAX_VALUE_BYTES

ROWS: list[dict[str, Any]] = json.loads((TESTDATA / "retry_fields.json").read_text())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_reads_the_rows_that_all_clients_share(row: dict[str, Any]) -> None:
    fields = [(name, value) for name, value in row["fields"]]
    assert advise(row["status"], fields, row["now_ms"]) == Advice(row["wait_ms"], row["pace_ms"])


def test_ignores_oversized_values() -> None:
    at_most = "5".rjust(MAX_VALUE_BYTES, "0")
    assert advise(429, [("Retry-After", at_most)]).wait_ms == 5000
    assert advise(429, [("Retry-After", "0" + at_most)]).wait_ms is None


def test_ignores_dates_that_are_not_in_the_calendar() -> None:
    assert advise(429, [("Retry-After", "Fri, 31 Feb 2023 00:00:00 GMT")]).wait_ms is None


def test_reads_two_digit_years_as_the_nearest_century() -> None:
    now_ms = 1_700_000_000_000
    assert advise(429, [("Retry-After", "Sunday, 06-Nov-94 08:49:37 GMT")], now_ms).wait_ms == 0
    assert advise(429, [("Retry-After", "Sunday, 06-Nov-33 08:49:37 GMT")], now_ms).wait_ms == DAY_MS


def test_reads_the_clock_if_no_time_is_given() -> None:
    assert advise(429, [("Retry-After", "Thu, 01 Jan 1970 00:00:00 GMT")]).wait_ms == 0


def test_bounds_every_wait_for_random_fields() -> None:
    chance = random.Random(6)
    told = 0
    for _ in range(20_000):
        row = chance.choice(ROWS)
        fields = [(name, _changed(value, chance)) for name, value in row["fields"]]
        advice = advise(row["status"], fields, row["now_ms"])
        for ms in (advice.wait_ms, advice.pace_ms):
            assert ms is None or 0 <= ms <= DAY_MS
            told += ms is not None
    assert told > 1000


def _changed(value: str, chance: random.Random) -> str:
    letters = '"\\;,=:?@%.-+ \t0159rtqwGMT\x00\x7f\u0660\uffff'
    chars = list(value)
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(chars) + 1)
        chars[at : at + chance.randrange(3)] = chance.choice(letters) * chance.randrange(3)
    return "".join(chars)
